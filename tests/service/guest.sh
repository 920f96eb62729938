#!/bin/bash
# Runs in the emulated machine of tests/service/run, as root, once it is up; what it prints goes to the serial console.
set -u
passed=0 failed=0

check() { # check NAME COMMAND…
  local name=$1 said; shift
  if said=$("$@" 2>&1); then echo "ok $name${said:+: ${said##*$'\n'}}"; passed=$((passed + 1)); else
    echo "not ok $name"; printf '%s\n' "$said" | tail -n 25 | sed 's/^/  /'; failed=$((failed + 1))
  fi
}

sql() { runuser -u umavez -- psql -XAtq -v ON_ERROR_STOP=1 -d umavez "$@"; }
show() { systemctl show -P "$1" umavez; }
umavez_as() { runuser -u umavez -- env UMAVEZ_CONFIG=/etc/umavez/umavez.lua umavez "$@"; }
journal() { journalctl -u umavez -o cat --no-pager "$@"; }
# waits for a condition, which is an event, not a time; the emulated machine is slow
until_true() { local i; for ((i = 0; i < 1200; i++)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.2; done; return 1; }
is() { [ "$($1 "$2")" = "$3" ] || { echo "$2 is $($1 "$2"), expected $3"; journal -n 20; return 1; }; }
status_is() { [[ "$(show StatusText)" == $1 ]] || { echo "STATUS is: $(show StatusText)"; return 1; }; }
drop_in() { mkdir -p /etc/systemd/system/umavez.service.d; printf '%s\n' "$@" >/etc/systemd/system/umavez.service.d/check.conf; systemctl daemon-reload; }
none_left() { [ "$(sql -c 'SELECT count(*) FROM umavez.runs')" = 0 ]; }
effects() { local n; n=$(sql -c "SELECT count(*), count(DISTINCT n) FROM effects WHERE kind = '$1'"); [ "$n" = "$2|$2" ] || { echo "effects and distinct ones: $n, expected $2"; return 1; }; echo "$2"; }
enqueue() { sql -c "SELECT count(umavez.enqueue('shop.step', jsonb_build_object('kind', '$1', 'n', n, 'sleep', $3))) FROM generate_series(1, $2) n" >/dev/null; }

prepare() {
  until_true runuser -u postgres -- psql -c 'SELECT 1' || return 1
  # once more in the same machine (--again)
  systemctl stop umavez; rm -rf /etc/systemd/system/umavez.service.d; systemctl daemon-reload
  runuser -u postgres -- dropdb --if-exists umavez; runuser -u postgres -- createuser umavez
  runuser -u postgres -- createdb -O umavez umavez || return 1
  cat >/etc/umavez/umavez.lua <<'END'
return { database_url = "postgresql:///umavez", valkey_url = "redis://127.0.0.1:6379", workers = 2, drain_timeout = "20s" }
END
  mkdir -p /etc/umavez/tasks/shop
  cat >/etc/umavez/tasks/shop/manifest.lua <<'END'
return { tasks = { step = { owner = "platform", timeout = "60s", args = { kind = { type = "string", required = true } } } } }
END
  cat >/etc/umavez/tasks/shop/step.lua <<'END'
return function(ctx, args)
  if args.sleep > 0 then ctx:sleep(args.sleep) end
  ctx.sql:exec("INSERT INTO effects (kind, n) VALUES ($1, $2)", args.kind, args.n)
  return { n = args.n }
end
END
  umavez_as migrate && sql -c 'CREATE TABLE effects (kind text NOT NULL, n bigint NOT NULL)'
}

start() { systemctl start umavez && is show ActiveState active && until_true status_is 'working: 2 of 2 children ready, generation 1,*' && show StatusText; }

works() { enqueue first 20 0 && until_true none_left && effects first 20; }

# Reloads while work goes on: each is waited for by systemctl itself where the unit says Type=notify-reload. (A slow machine may
# be told of a reload that is given up, or not finished, in 30 s: that is an end, too.)
reload_events() { journalctl -b -u umavez -o cat --no-pager _PID="$(show MainPID)" | grep -cE "event=($1)( |\$)"; }
reloads_over() { [ "$(reload_events 'reloaded|reload_unfinished|reload_failed')" -ge "$1" ]; }
reload_under_load() {
  local kind=$1 waits=$2 i before
  before=$(show MainPID)
  enqueue "$kind" 400 0.1 || return 1
  for i in 1 2 3; do
    systemctl reload umavez || return 1
    journalctl --sync
    if [ "$waits" = waits ]; then # it has come back: so the reload is over
      [[ "$(show StatusText)" == working:* ]] && reloads_over "$i" || { echo "systemctl reload came back too early"; show StatusText; journal | grep reload; return 1; }
    else
      until_true reloads_over "$i" || { show StatusText; journal | grep reload; return 1; }
    fi
  done
  [ "$(reload_events 'reloaded|reload_unfinished')" -ge 1 ] || { journal | grep reload; return 1; }
  until_true none_left || { journal -n 20; return 1; }
  is show MainPID "$before" && is show NRestarts 0 && is show ActiveState active && effects "$kind" 400
}

broken_reload() {
  cp /etc/umavez/tasks/shop/manifest.lua /tmp/good
  echo 'return { tasks = { step = { owner = "nobody" } } }' >/etc/umavez/tasks/shop/manifest.lua
  systemctl reload umavez
  echo "systemctl reload ended with $?"
  until_true sh -c "journalctl -u umavez -o cat --no-pager | grep event=reload_failed | grep -q nobody" || { journal -n 20; return 1; }
  cp /tmp/good /etc/umavez/tasks/shop/manifest.lua
  is show ActiveState active && enqueue "after-broken" 5 0 && until_true none_left && effects after-broken 5
}

watchdog() {
  local pid; pid=$(show MainPID)
  enqueue stopped 100 0.2 || return 1
  kill -STOP "$pid"
  until_true sh -c '[ "$(systemctl show -P NRestarts umavez)" -ge 1 ]' || { show Result; return 1; }
  until_true status_is 'working: 2 of 2 children ready*' || { journal -n 20; return 1; }
  journalctl -u umavez --no-pager | grep -qi 'watchdog timeout' || { journal -n 20; return 1; }
  until_true none_left && effects stopped 100 && echo "restarted $(show NRestarts) time(s)"
}

crashed_supervisor() {
  local pid; pid=$(show MainPID)
  enqueue killed 50 0.1 && kill -KILL "$pid" || return 1
  until_true sh -c "[ \"\$(systemctl show -P MainPID umavez)\" != $pid ] && [ \"\$(systemctl show -P ActiveState umavez)\" = active ]" || return 1
  until_true none_left && effects killed 50
}

stop_drains() {
  enqueue drained 4 4 && until_true sh -c "[ \"\$(runuser -u umavez -- psql -XAtq -d umavez -c \"SELECT count(*) FROM umavez.runs WHERE state = 'running'\")\" = 4 ]" || return 1
  systemctl stop umavez || return 1
  is show ActiveState inactive && is show Result success && effects drained 4 && none_left
}

logs() {
  local n; n=$(journal | grep -c 'event=')
  [ "$n" -gt 20 ] && journal | grep -q 'event=child_ready' && journal | grep -q 'event=reloaded' && ! journal | grep -q 'postgresql://[^ ]*:[^ ]*@' || { journal -n 30; return 1; }
  echo "$n lines"
}

security() {
  local line score; line=$(systemd-analyze security --no-pager umavez | tail -n 1)
  score=$(echo "$line" | grep -oE '[0-9]+\.[0-9]+')
  echo "$line" | grep -oE 'Overall.*'
  awk -v s="$score" 'BEGIN { exit !(s != "" && s <= 2.5) }'
}

no_denials() { ! journalctl --no-pager -b | grep -aE 'type=1326|SECCOMP auid|status=31/SYS|apparmor="DENIED"'; }

echo "systemd: $(systemctl --version | head -n 1); $(uname -r); $(umavez version 2>/dev/null | head -n 1)"
check prepare prepare
check unit-verified systemd-analyze verify umavez.service
check start start
check works works
check reload-under-load reload_under_load plain no
drop_in '[Service]' 'Type=notify-reload' 'ExecReload=' 'WatchdogSec=20s'
systemctl restart umavez
check notify-reload is show Type notify-reload
check reload-waits-under-load reload_under_load waited waits
check broken-reload broken_reload
check watchdog watchdog
check supervisor-killed crashed_supervisor
check stop-drains stop_drains
check journal logs
check security security
check no-denials no_denials
echo "VERDICT $passed passed, $failed failed"
