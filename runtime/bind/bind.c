#include "bind/bind.h"

void bind_open(struct vm *vm) {
  (void)vm;
}
