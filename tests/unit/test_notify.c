/* What a service manager is told, against a socket of our own; and the setting http_listen, taken apart. */
#include "cm.h"

#include "proc/listen.h"
#include "proc/notify.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char name[64]; /* as NOTIFY_SOCKET has it */

static int listen_at(bool abstract) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  snprintf(name, sizeof name, "%suv-notify-%d", abstract ? "@" : "/tmp/", (int)getpid());
  strcpy(a.sun_path, name);
  if (abstract) a.sun_path[0] = 0;
  int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
  if (!abstract) unlink(name);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name))), 0);
  return fd;
}

static void assert_told(int fd, const char *text) {
  char got[256];
  ssize_t n = recv(fd, got, sizeof got - 1, 0);
  assert_true(n >= 0);
  got[n] = 0;
  assert_string_equal(got, text);
}

static struct notify *make(const char *socket_name, const char *usec, const char *pid) {
  socket_name ? setenv("NOTIFY_SOCKET", socket_name, 1) : unsetenv("NOTIFY_SOCKET");
  usec ? setenv("WATCHDOG_USEC", usec, 1) : unsetenv("WATCHDOG_USEC");
  pid ? setenv("WATCHDOG_PID", pid, 1) : unsetenv("WATCHDOG_PID");
  struct notify *n = notify_new();
  assert_null(getenv("NOTIFY_SOCKET"));
  assert_null(getenv("WATCHDOG_USEC"));
  assert_null(getenv("WATCHDOG_PID"));
  return n;
}

static void datagrams_arrive_whole(void **state) {
  for (int abstract = 0; abstract < 2; abstract++) {
    int fd = listen_at(abstract);
    struct notify *n = make(name, NULL, NULL);
    assert_true(notify_send(n, "READY=1\nSTATUS=%d of %d", 2, 3));
    assert_told(fd, "READY=1\nSTATUS=2 of 3");
    notify_reloading(n);
    char got[256] = {0};
    assert_true(recv(fd, got, sizeof got - 1, 0) > 0);
    assert_int_equal(strncmp(got, "RELOADING=1\nMONOTONIC_USEC=", 27), 0);
    assert_true(atoll(got + 27) > 0);
    notify_free(n);
    close(fd);
    if (!abstract) unlink(name);
  }
}

static void nobody_listens(void **state) {
  static const char *const names[] = {NULL, "", "relative", "vsock:2:1", "/", "@", "/tmp/uv-nobody-is-there"};
  for (size_t i = 0; i < COUNT(names); i++) {
    struct notify *n = make(names[i], "1000000", NULL);
    assert_false(notify_send(n, "READY=1"));
    notify_reloading(n);
    notify_free(n);
  }
  char far[200];
  memset(far, 'x', sizeof far);
  far[0] = '/';
  far[sizeof far - 1] = 0;
  struct notify *n = make(far, NULL, NULL);
  assert_false(notify_send(n, "READY=1"));
  notify_free(n);
}

static void the_watchdog_is_due_at_half(void **state) {
  static const struct {
    const char *usec, *pid;
    int64_t ms;
  } rows[] = {{"30000000", NULL, 15000}, {"400000", NULL, 200}, {"1", NULL, 1}, {"0", NULL, 0}, {"-5", NULL, 0},
              {"soon", NULL, 0},         {"1000x", NULL, 0},    {NULL, NULL, 0}, {"1000000", "1", 0}};
  char pid[16];
  int fd = listen_at(true);
  for (size_t i = 0; i < COUNT(rows); i++) {
    struct notify *n = make(name, rows[i].usec, rows[i].pid);
    assert_int_equal(notify_watchdog_ms(n), rows[i].ms);
    notify_free(n);
  }
  snprintf(pid, sizeof pid, "%d", (int)getpid());
  struct notify *n = make(name, "1000000", pid);
  assert_int_equal(notify_watchdog_ms(n), 500);
  notify_free(n);
  n = make(NULL, "1000000", pid); /* nobody to tell */
  assert_int_equal(notify_watchdog_ms(n), 0);
  notify_free(n);
  close(fd);
}

static void addresses_are_taken_apart(void **state) {
  static const struct {
    const char *text, *address;
    int port;
  } rows[] = {{"8080", "127.0.0.1", 8080}, {"0.0.0.0:80", "0.0.0.0", 80}, {"[::1]:8443", "::1", 8443}, {"127.0.0.1:0", "127.0.0.1", 0}};
  for (size_t i = 0; i < COUNT(rows); i++) {
    char address[64];
    assert_int_equal(listen_split(rows[i].text, address), rows[i].port);
    assert_string_equal(address, rows[i].address);
  }
  struct err e = ERR_INIT;
  int fd = listen_open("127.0.0.1:0", &e);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(listen_open("no.such.host:0", &e), -1);
  assert_string_equal(e.code, "address");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(datagrams_arrive_whole),
      cmocka_unit_test(nobody_listens),
      cmocka_unit_test(the_watchdog_is_due_at_half),
      cmocka_unit_test(addresses_are_taken_apart),
  };
  return RUN(tests);
}
