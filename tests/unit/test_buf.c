#include "cm.h"

#include "base/buf.h"
#include "base/list.h"

#include <stdio.h>
#include <stdlib.h>

static void an_empty_buffer_is_an_empty_string(void **state) {
  struct buf b = BUF_INIT;
  assert_string_equal(buf_cstr(&b), "");
  buf_fini(&b);
  buf_append(&b, NULL, 0);
  char *taken = buf_take(&b);
  assert_string_equal(taken, "");
  free(taken);
  buf_clear(&b);
  buf_fini(&b);
  buf_fini(&b);
}

static void appending_keeps_a_nul_behind(void **state) {
  struct buf b = BUF_INIT;
  for (int i = 0; i < 1000; i++) {
    buf_putc(&b, (char)('a' + i % 26));
    assert_int_equal(b.len, i + 1);
    assert_int_equal(b.data[b.len], '\0');
    assert_true(b.len < b.cap);
  }
  buf_truncate(&b, 3);
  assert_string_equal(b.data, "abc");
  buf_puts(&b, "def");
  buf_append(&b, "g\0h", 3);
  assert_int_equal(b.len, 9);
  assert_memory_equal(b.data, "abcdefg\0h", 10);
  buf_clear(&b);
  assert_string_equal(buf_cstr(&b), "");
  buf_fini(&b);
}

static void printf_grows_at_every_length(void **state) {
  struct buf b = BUF_INIT;
  char expected[4000] = "";
  for (int n = 0; n < 200; n++) {
    buf_printf(&b, "%*d", n / 10, n);
    sprintf(expected + strlen(expected), "%*d", n / 10, n);
    assert_string_equal(b.data, expected);
    assert_int_equal(b.len, strlen(expected));
  }
  buf_printf(&b, "%s", "");
  assert_int_equal(b.len, strlen(expected));
  buf_fini(&b);
}

static void extend_lends_the_new_octets(void **state) {
  struct buf b = BUF_INIT;
  buf_puts(&b, "x");
  memcpy(buf_extend(&b, 3), "abc", 3);
  assert_string_equal(b.data, "xabc");
  buf_reserve(&b, 500);
  const char *before = b.data;
  memset(buf_extend(&b, 500), 'y', 500);
  assert_ptr_equal(b.data, before);
  assert_int_equal(b.data[504], '\0');
  buf_fini(&b);
}

struct item {
  int value;
  struct list node;
};

static void list_is_first_in_first_out(void **state) {
  struct list head = LIST_INIT(head);
  struct item items[5], *it, *after;
  assert_null(list_first(&head, struct item, node));
  assert_null(list_pop_front(&head, struct item, node));
  for (int i = 0; i < 5; i++) {
    items[i].value = i;
    list_init(&items[i].node);
    assert_false(list_linked(&items[i].node));
    list_push_back(&head, &items[i].node);
    assert_true(list_linked(&items[i].node));
  }
  assert_int_equal(list_length(&head), 5);
  int sum = 0;
  list_for_each(it, &head, node) sum = sum * 10 + it->value;
  assert_int_equal(sum, 1234);
  list_for_each_safe(it, after, &head, node) {
    if (it->value % 2 == 1) list_remove(&it->node);
  }
  assert_int_equal(list_length(&head), 3);
  assert_int_equal(list_last(&head, struct item, node)->value, 4);
  list_remove(&items[1].node); /* again: harmless */
  list_push_front(&head, &items[1].node);
  assert_ptr_equal(list_pop_front(&head, struct item, node), &items[1]);
  list_insert_before(&items[4].node, &items[3].node);
  int order[] = {0, 2, 3, 4};
  for (int i = 0; i < 4; i++) assert_int_equal(list_pop_front(&head, struct item, node)->value, order[i]);
  assert_true(list_empty(&head));
}

static void splice_moves_all(void **state) {
  struct list a = LIST_INIT(a), b = LIST_INIT(b);
  struct item items[4];
  for (int i = 0; i < 4; i++) {
    items[i].value = i;
    list_init(&items[i].node);
    list_push_back(i < 2 ? &a : &b, &items[i].node);
  }
  list_splice_back(&a, &b);
  assert_true(list_empty(&b));
  list_splice_back(&a, &b);
  for (int i = 0; i < 4; i++) assert_int_equal(list_pop_front(&a, struct item, node)->value, i);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_empty_buffer_is_an_empty_string), cmocka_unit_test(appending_keeps_a_nul_behind),
      cmocka_unit_test(printf_grows_at_every_length),       cmocka_unit_test(extend_lends_the_new_octets),
      cmocka_unit_test(list_is_first_in_first_out),         cmocka_unit_test(splice_moves_all),
  };
  return RUN(tests);
}
