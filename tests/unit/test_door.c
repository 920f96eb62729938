/* The door's pure parts: Idempotency-Key, routes, answers, problems, scopes, signatures (rows G01, G04, G09 in the small). */
#include "cm.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "core/door_answer.h"
#include "core/door_auth.h"
#include "core/door_key.h"
#include "core/door_problem.h"
#include "core/door_route.h"

/* ---- Idempotency-Key ---- */

static void expect_key(const char *value, const char *key) {
  struct buf out = BUF_INIT;
  struct err e = {0};
  int rc = door_key_parse(value, false, &out, &e);

  if (key) {
    assert_int_equal(rc, 0);
    assert_string_equal(buf_cstr(&out), key);
  } else {
    assert_int_equal(rc, -1);
    assert_string_equal(e.code, "key_invalid");
  }
  buf_fini(&out);
}

static void test_G01_key_forms(void **state) {
  char longest[300];

  (void)state;
  expect_key("abc", "abc");
  expect_key("\"abc\"", "abc");
  expect_key("\"a, b\"", "a, b");
  expect_key("\"a\\\"b\\\\c\"", "a\"b\\c");
  expect_key("8e03978e-40d5-43dd-bc93-6894a57f9324", "8e03978e-40d5-43dd-bc93-6894a57f9324");
  expect_key("a;b=c", "a;b=c");
  expect_key("", NULL);
  expect_key("\"\"", NULL);
  expect_key("a, b", NULL);
  expect_key("a,b", NULL);
  expect_key("a b", NULL);
  expect_key("a\"b", NULL);
  expect_key("a\\b", NULL);
  expect_key("\"abc", NULL);
  expect_key("\"abc\"x", NULL);
  expect_key("\"abc\";p=1", NULL);
  expect_key("\"abc\", \"d\"", NULL);
  expect_key("\"a\\b\"", NULL);
  expect_key("\"a\\", NULL);
  expect_key("a\tb", NULL);
  expect_key("\x01", NULL);
  expect_key("\x7f", NULL);
  expect_key("\xc3\xa7", NULL);
  expect_key("\"\xc3\xa7\"", NULL);
  memset(longest, 'k', sizeof longest);
  longest[255] = 0;
  expect_key(longest, longest);
  longest[255] = 'k';
  longest[256] = 0;
  expect_key(longest, NULL);
}

static void test_key_uuid(void **state) {
  struct buf out = BUF_INIT;
  struct err e = {0};

  (void)state;
  assert_int_equal(door_key_parse("8e03978e-40d5-43dd-bc93-6894a57f9324", true, &out, &e), 0);
  buf_clear(&out);
  assert_int_equal(door_key_parse("\"8E03978E-40D5-43DD-BC93-6894A57F9324\"", true, &out, &e), 0);
  buf_clear(&out);
  assert_int_equal(door_key_parse("8e03978e-40d5-43dd-bc93", true, &out, &e), -1);
  buf_fini(&out);
}

static void test_G09_digests_tell_owner_task_and_key_apart(void **state) {
  uint8_t a[DIGEST_BYTES], b[DIGEST_BYTES];

  (void)state;
  door_key_digest("t1", "a.b", "k", 1, a);
  door_key_digest("t1", "a.b", "k", 1, b);
  assert_memory_equal(a, b, DIGEST_BYTES);
  door_key_digest("t2", "a.b", "k", 1, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
  door_key_digest("t1", "a.c", "k", 1, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
  door_key_digest("t1", "a.", "bk", 2, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
  door_request_fingerprint("POST", "/p", NULL, "{}", 2, a);
  door_request_fingerprint("POST", "/p", "", "{}", 2, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
  door_request_fingerprint("POST", "/p", NULL, "{ }", 3, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
  door_request_fingerprint("PUT", "/p", NULL, "{}", 2, b);
  assert_memory_not_equal(a, b, DIGEST_BYTES);
}

/* ---- routes ---- */

static void add_door(const char *name, const char *method, const char *path) {
  struct task *t = task_new(name);
  struct err e = {0};

  t->http = xcalloc(1, sizeof *t->http);
  t->http->method = xstrdup(method);
  t->http->path = xstrdup(path);
  assert_int_equal(task_register(t, &e), 0);
}

static enum door_match match(struct door_routes *rs, const char *method, const char *path, const char *task,
                             const char *params) {
  struct task *found = NULL;
  struct buf p = BUF_INIT, allow = BUF_INIT;
  enum door_match m = door_routes_match(rs, method, path, &found, &p, &allow);

  if (m == DOOR_MATCH) {
    assert_string_equal(found->name, task);
    assert_string_equal(buf_cstr(&p), params);
  } else if (m == DOOR_NO_METHOD) {
    assert_string_equal(buf_cstr(&allow), params);
  }
  buf_fini(&p);
  buf_fini(&allow);
  return m;
}

static void test_routes(void **state) {
  struct err e = {0};
  struct door_routes *rs;

  (void)state;
  add_door("a.one", "POST", "/payments");
  add_door("a.two", "POST", "/orders/{order_id}/refunds");
  add_door("a.three", "POST", "/orders/latest/refunds");
  add_door("a.four", "PUT", "/orders/{id}");
  add_door("a.five", "DELETE", "/orders/{id}");
  rs = door_routes_new(&e);
  assert_non_null(rs);
  assert_int_equal(match(rs, "POST", "/payments", "a.one", ""), DOOR_MATCH);
  assert_int_equal(match(rs, "POST", "/payments/", "", ""), DOOR_NO_PATH);
  assert_int_equal(match(rs, "POST", "/Payments", "", ""), DOOR_NO_PATH);
  assert_int_equal(match(rs, "POST", "/orders/7/refunds", "a.two", "\"order_id\":\"7\""), DOOR_MATCH);
  assert_int_equal(match(rs, "POST", "/orders/a%2Fb%22/refunds", "a.two", "\"order_id\":\"a/b\\\"\""), DOOR_MATCH);
  assert_int_equal(match(rs, "POST", "/orders/latest/refunds", "a.three", ""), DOOR_MATCH);
  assert_int_equal(match(rs, "POST", "/orders//refunds", "", ""), DOOR_NO_PATH);
  assert_int_equal(match(rs, "GET", "/payments", "", "POST"), DOOR_NO_METHOD);
  assert_int_equal(match(rs, "GET", "/orders/7", "", "DELETE, PUT"), DOOR_NO_METHOD);
  assert_int_equal(match(rs, "POST", "/orders/%zz/refunds", "", ""), DOOR_BAD_PATH);
  assert_int_equal(match(rs, "POST", "/orders/%00/refunds", "", ""), DOOR_BAD_PATH);
  assert_int_equal(match(rs, "POST", "/orders/%ff/refunds", "", ""), DOOR_BAD_PATH);
  assert_int_equal(match(rs, "POST", "*", "", ""), DOOR_NO_PATH);
  assert_int_equal(match(rs, "POST", "/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4/5/6/7/8/9/0/1/2/3/4", "", ""),
                   DOOR_NO_PATH);
  door_routes_free(rs);
  add_door("b.same", "PUT", "/orders/{other}");
  assert_null(door_routes_new(&e));
  assert_string_equal(e.code, "route_conflict");
  task_forget_all();
}

/* ---- answers ---- */

static void expect_answer(const char *outcome, bool failed, int status, const char *type, const char *body) {
  struct door_answer a;
  struct err e = {0};
  const char *found = NULL;

  assert_int_equal(door_answer_init(&a, outcome, strlen(outcome), failed, &e), 0);
  assert_int_equal(a.status, status);
  assert_string_equal(buf_cstr(&a.body), body);
  for (int i = 0; i < a.nheaders; i++)
    if (strcmp(a.header[i].name, "Content-Type") == 0) found = buf_cstr(&a.header[i].value);
  assert_string_equal(found, type);
  door_answer_fini(&a);
}

static void test_answers(void **state) {
  const char *json = "application/json", *problem = "application/problem+json";

  (void)state;
  expect_answer("{}", false, 200, json, "{}");
  expect_answer("{\"status\": 201, \"payment_id\": 7}", false, 201, json, "{\"payment_id\":7}");
  expect_answer("{\"body\": {\"b\": 1, \"a\": [2]}, \"status\": 201}", false, 201, json, "{\"b\": 1, \"a\": [2]}");
  expect_answer("{\"body\": [1], \"headers\": {\"content-type\": \"application/hal+json\"}}", false, 200,
                "application/hal+json", "[1]");
  expect_answer("{\"status\": 204}", false, 204, json, "");
  expect_answer("{\"status\": \"paid\", \"n\": 1}", false, 200, json, "{\"status\":\"paid\",\"n\":1}");
  expect_answer("{\"status\": 99}", false, 200, json, "{}");
  expect_answer("{\"code\": \"limit_exceeded\", \"status\": 422, \"message\": \"above\"}", true, 422, problem,
                "{\"type\":\"urn:umavez:failure:limit_exceeded\",\"title\":\"The request was refused\",\"status\":422,"
                "\"code\":\"limit_exceeded\",\"detail\":\"above\"}");
  expect_answer("{\"code\": \"a\", \"status\": \"x\", \"type\": 1}", true, 422, problem,
                "{\"type\":\"urn:umavez:failure:a\",\"title\":\"The request was refused\",\"status\":422,\"code\":\"a\"}");
  expect_answer("{\"code\": \"a b\"}", true, 422, problem,
                "{\"type\":\"urn:umavez:failure:a%20b\",\"title\":\"The request was refused\",\"status\":422,"
                "\"code\":\"a b\"}");
  expect_answer("{\"code\": \"outcome_invalid\"}", true, 500, problem,
                "{\"type\":\"urn:umavez:failure:outcome_invalid\",\"title\":\"The request was refused\",\"status\":500,"
                "\"code\":\"outcome_invalid\"}");
}

static void test_headers_outside_the_list_are_dropped(void **state) {
  const char *outcome =
      "{\"headers\": {\"Set-Cookie\": \"a=b\", \"Date\": \"x\", \"location\": \"/p/7\", \"Location\": \"/second\", "
      "\"ETag\": \"a\\r\\nSet-Cookie: b\", \"Link\": 7}}";
  struct door_answer a;
  struct err e = {0};

  (void)state;
  assert_int_equal(door_answer_init(&a, outcome, strlen(outcome), false, &e), 0);
  assert_int_equal(a.nheaders, 2);
  assert_string_equal(a.header[0].name, "Location");
  assert_string_equal(buf_cstr(&a.header[0].value), "/p/7");
  assert_string_equal(a.header[1].name, "Content-Type");
  door_answer_fini(&a);
  assert_int_equal(door_answer_init(&a, "[1]", 3, false, &e), -1);
}

static void test_problems_are_json_and_have_types_of_their_own(void **state) {
  struct json_value v;
  struct buf b = BUF_INIT;

  (void)state;
  for (int p = 0; p < PROBLEM_COUNT; p++) {
    buf_clear(&b);
    door_problem_body((enum door_problem)p, "a \"detail\"\n", "8e03978e-40d5-43dd-bc93-6894a57f9324", &b);
    assert_int_equal(json_find(b.data, b.len, "type", &v), 0);
    assert_int_equal(v.type, JSON_STRING);
    assert_true(door_problem_status((enum door_problem)p) >= 400);
    for (int q = 0; q < p; q++)
      assert_string_not_equal(door_problem_name((enum door_problem)p), door_problem_name((enum door_problem)q));
  }
  buf_fini(&b);
}

/* ---- who ---- */

static void test_bearer_and_scopes(void **state) {
  (void)state;
  assert_string_equal(door_auth_bearer("Bearer abc.def"), "abc.def");
  assert_string_equal(door_auth_bearer("bearer  abc=="), "abc==");
  assert_null(door_auth_bearer("Basic abc"));
  assert_null(door_auth_bearer("Bearer "));
  assert_null(door_auth_bearer("Bearer a b"));
  assert_null(door_auth_bearer("Bearer a,b"));
  assert_true(door_auth_allows("[\"payments.pix\"]", "payments.pix"));
  assert_true(door_auth_allows("[\"a\", \"*\"]", "payments.pix"));
  assert_false(door_auth_allows("[\"payments\"]", "payments.pix"));
  assert_false(door_auth_allows("[]", "payments.pix"));
}

static void test_signature(void **state) {
  struct task_http h = {.signature_prefix = (char *)"sha256=", .signature_env = (char *)"UMAVEZ_TEST_SECRET"};
  /* the example of the sender's documentation: secret "It's a Secret to Everybody", body "Hello, World!" */
  const char *good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

  (void)state;
  unsetenv("UMAVEZ_TEST_SECRET");
  assert_false(door_auth_signed(&h, good, "Hello, World!", 13));
  setenv("UMAVEZ_TEST_SECRET", "It's a Secret to Everybody", 1);
  assert_true(door_auth_signed(&h, good, "Hello, World!", 13));
  assert_false(door_auth_signed(&h, good, "Hello, World?", 13));
  assert_false(door_auth_signed(&h, good + 7, "Hello, World!", 13));
  assert_false(door_auth_signed(&h, "sha256=", "Hello, World!", 13));
  assert_false(door_auth_signed(&h, NULL, "Hello, World!", 13));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_G01_key_forms),
      cmocka_unit_test(test_key_uuid),
      cmocka_unit_test(test_G09_digests_tell_owner_task_and_key_apart),
      cmocka_unit_test(test_routes),
      cmocka_unit_test(test_answers),
      cmocka_unit_test(test_headers_outside_the_list_are_dropped),
      cmocka_unit_test(test_problems_are_json_and_have_types_of_their_own),
      cmocka_unit_test(test_bearer_and_scopes),
      cmocka_unit_test(test_signature),
  };
  return cmocka_run_group_tests_name("door", tests, NULL, NULL);
}
