/* list: an intrusive, circular, doubly linked list.
 *
 * The head and the links are the same struct; a struct that can be listed has a `struct list` member. A list owns
 * nothing. Invariants: a link is either in exactly one list or alone (points at itself). list_init before any other
 * call; list_remove re-initialises, so removing twice is harmless and list_linked tells whether something is listed.
 * Pushing a link that is still in a list is a bug.
 *
 *   struct job { struct list node; };
 *   struct job *j, *next;
 *   list_for_each_safe(j, next, &head, node) list_remove(&j->node);
 *
 * list_for_each allows no change of the list inside the loop; list_for_each_safe allows the removal (and free) of the
 * current element only.
 */
#ifndef UMAVEZ_BASE_LIST_H
#define UMAVEZ_BASE_LIST_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>

struct list {
  struct list *prev;
  struct list *next;
};

#define LIST_INIT(head) {&(head), &(head)}

#define container_of(ptr, type, member) ((type *)((char *)(ptr) - offsetof(type, member)))

static inline void list_init(struct list *l) { l->prev = l->next = l; }

static inline bool list_empty(const struct list *head) { return head->next == head; }

static inline bool list_linked(const struct list *node) { return node->next != node; }

static inline void list_insert_between_(struct list *node, struct list *prev, struct list *next) {
  assert(node->next == node && "the link is in a list already, or list_init was forgotten");
  node->prev = prev;
  node->next = next;
  prev->next = node;
  next->prev = node;
}

static inline void list_push_back(struct list *head, struct list *node) {
  list_insert_between_(node, head->prev, head);
}

static inline void list_push_front(struct list *head, struct list *node) {
  list_insert_between_(node, head, head->next);
}

static inline void list_insert_before(struct list *at, struct list *node) {
  list_insert_between_(node, at->prev, at);
}

static inline void list_remove(struct list *node) {
  node->prev->next = node->next;
  node->next->prev = node->prev;
  list_init(node);
}

/* Moves every element of `from` to the end of `to`; `from` is empty afterwards. */
static inline void list_splice_back(struct list *to, struct list *from) {
  if (list_empty(from)) return;
  from->next->prev = to->prev;
  to->prev->next = from->next;
  from->prev->next = to;
  to->prev = from->prev;
  list_init(from);
}

static inline size_t list_length(const struct list *head) {
  size_t n = 0;
  for (const struct list *l = head->next; l != head; l = l->next) n++;
  return n;
}

static inline struct list *list_pop_front_(struct list *head) {
  struct list *first = head->next;
  list_remove(first);
  return first;
}

/* NULL when the list is empty; `head` is evaluated more than once. */
#define list_first(head, type, member) (list_empty(head) ? (type *)NULL : container_of((head)->next, type, member))
#define list_last(head, type, member) (list_empty(head) ? (type *)NULL : container_of((head)->prev, type, member))
#define list_pop_front(head, type, member) \
  (list_empty(head) ? (type *)NULL : container_of(list_pop_front_(head), type, member))

#define list_for_each(var, head, member) \
  for ((var) = container_of((head)->next, __typeof__(*(var)), member); &(var)->member != (head); \
       (var) = container_of((var)->member.next, __typeof__(*(var)), member))

#define list_for_each_safe(var, after, head, member) \
  for ((var) = container_of((head)->next, __typeof__(*(var)), member), \
      (after) = container_of((var)->member.next, __typeof__(*(var)), member); \
       &(var)->member != (head); \
       (var) = (after), (after) = container_of((after)->member.next, __typeof__(*(var)), member))

#endif
