#include "io/httpd_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char *advice(int error) {
  switch (error) {
    case EADDRINUSE:
      return "another program listens there; choose another port, or stop it (`ss -ltnp` names it)";
    case EACCES:
      return "ports below 1024 need a privilege; choose a higher one";
    case EADDRNOTAVAIL:
      return "this machine does not have that address; `ip address` lists those it has";
    case EAFNOSUPPORT:
      return "this machine has no such address family; use an IPv4 address";
    default:
      return "check the address and the limits of the process";
  }
}

int httpd_listen(const char *address, int port, struct err *e) {
  struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
  const struct sockaddr *a;
  socklen_t len;
  int one = 1;
  if (port < 0 || port > 65535) return err_set(e, ERR_INPUT, "address", "%d is no port: 0 to 65535", port);
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) {
    a = (const struct sockaddr *)&v4;
    len = sizeof v4;
  } else if (inet_pton(AF_INET6, address, &v6.sin6_addr) == 1) {
    a = (const struct sockaddr *)&v6;
    len = sizeof v6;
  } else {
    return err_set(e, ERR_INPUT, "address", "\"%s\" is no IPv4 or IPv6 address; a host's name does not do here",
                   address);
  }
  int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a, len) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
  }
  int error = errno;
  if (fd >= 0) close(fd);
  return err_set(e, ERR_ENV, "listen_failed", "cannot listen on %s port %d: %s; %s", address, port, strerror(error),
                 advice(error));
}

int httpd_listen_port(int fd) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  if (getsockname(fd, (struct sockaddr *)&a, &len) < 0) return 0;
  if (a.ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)(const void *)&a)->sin_port);
  if (a.ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)(const void *)&a)->sin6_port);
  return 0;
}

bool httpd_listen_is_ipv6(int fd) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  return getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family == AF_INET6;
}
