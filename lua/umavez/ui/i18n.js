// i18n: the language, and numbers, times and spans in it.

import en from "./en.js";
import pt from "./pt.js";

export const LANGUAGES = { en: { catalogue: en, locale: "en-GB", name: "English" }, pt: { catalogue: pt, locale: "pt-BR", name: "Português" } };
const KEPT = "umavez.language";

function kept() {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

function preferred() {
  const own = kept();
  if (own in LANGUAGES) return own;
  for (const wanted of navigator.languages || [navigator.language]) {
    const short = wanted.slice(0, 2).toLowerCase();
    if (short in LANGUAGES) return short;
  }
  return "en";
}

export let language = preferred();

export function setLanguage(name) {
  language = name;
  document.documentElement.lang = LANGUAGES[name].locale;
  try {
    localStorage.setItem(KEPT, name);
  } catch {
    // a browser that keeps nothing asks again
  }
}
document.documentElement.lang = LANGUAGES[language].locale;

/** The text of a key, with {name} replaced. */
export function t(key, values) {
  const text = LANGUAGES[language].catalogue[key];
  if (text === undefined) throw new Error(`no text for ${key}`);
  return values ? text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole)) : text;
}

/** The same, for one and for many: the keys are KEY.one and KEY.many. */
export const plural = (key, n) => t(`${key}.${Number(n) === 1 ? "one" : "many"}`, { n: number(n) });

export function number(value, digits = 0) {
  if (value === null || value === undefined) return "–";
  return new Intl.NumberFormat(LANGUAGES[language].locale, { maximumFractionDigits: digits }).format(Number(value));
}

/** A count that the database has stopped counting at. */
export const bounded = (value, limit) => (Number(value) >= limit ? `${number(limit)}+` : number(value));

export const rate = (value) => number(value, Number(value) < 1 ? 2 : Number(value) < 10 ? 1 : 0);
export const percent = (value) => (value === null || value === undefined ? "–" : `${number(value, 1)} %`);

export function milliseconds(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms > 0 && ms < 10) return `${number(ms, 1)} ms`;
  return ms < 10000 ? `${number(ms)} ms` : seconds(ms / 1000);
}

/** A span in two units at most. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  const s = Math.max(0, Math.floor(value));
  if (s < 60) return `${s} s`;
  if (s < 600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function moment(iso) {
  return new Intl.DateTimeFormat(LANGUAGES[language].locale, {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  }).format(new Date(iso));
}

export function clock(ms) {
  return new Intl.DateTimeFormat(LANGUAGES[language].locale, { hour: "2-digit", minute: "2-digit", second: "2-digit" }).format(new Date(ms));
}
