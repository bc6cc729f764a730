/* Faults on demand: the calls that a conversion makes under one folder are counted, and the N-th fails, is cut short, or kills.
 *
 * Preloaded into a Python that forks a child for each trial; the child arms it with fault_arm. Not armed, calls pass through.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, READ = 2, SYNC = 4, NAME = 8 };            /* kinds of calls, as bits */
enum { FAIL = 1, SHORT = 2, KILL_BEFORE = 3, KILL_AFTER = 4 }; /* what happens */

static char watched[PATH_MAX];
static size_t watched_length;
static int kinds, action, error_number, for_good;
static long target;
static atomic_long count;

/* Calls of `kinds_` on files under `folder` are counted from now on; at number `at` (from 1) `action_` happens, with for_good_ at all later ones too. */
void fault_arm(const char *folder, int kinds_, long at, int action_, int errno_, int for_good_) {
    snprintf(watched, sizeof watched, "%s", folder);
    watched_length = strlen(watched);
    kinds = kinds_, target = at, action = action_, error_number = errno_, for_good = for_good_;
    atomic_store(&count, 0);
}

long fault_count(void) { return atomic_load(&count); }

static int under(const char *path) { return watched_length && strncmp(path, watched, watched_length) == 0; }

static int fd_under(int fd) {
    char link[64], path[PATH_MAX];
    if (!watched_length) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return under(path);
}

/* 0: go on; else the action that is due for this call. */
static int due(int kind, int here) {
    if (!here || !(kinds & kind)) return 0;
    long mine = atomic_fetch_add(&count, 1) + 1;
    if (mine != target && !(for_good && mine > target)) return 0;
    if (action == KILL_BEFORE) raise(SIGKILL);
    return action;
}

#define REAL(name) __typeof__(name) *real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define AFTER(now, value) do { if ((now) == KILL_AFTER) raise(SIGKILL); return value; } while (0)
#define REFUSE(now) do { if ((now) == FAIL) { errno = error_number; return -1; } } while (0)
#define LESS(now, n) ((now) == SHORT && (n) > 1 ? (n) / 2 : (n))

#define SIZED(name, kind, buffer, ...)                                                                         \
    {                                                                                                          \
        REAL(name);                                                                                            \
        int now = due(kind, fd_under(fd));                                                                     \
        REFUSE(now);                                                                                           \
        ssize_t got = real(fd, buffer, LESS(now, n), ##__VA_ARGS__);                                           \
        AFTER(now, got);                                                                                       \
    }

ssize_t write(int fd, const void *p, size_t n) SIZED(write, WRITE, p)
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) SIZED(pwrite, WRITE, p, at)
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t at) SIZED(pwrite64, WRITE, p, at)
ssize_t read(int fd, void *p, size_t n) SIZED(read, READ, p)
ssize_t pread(int fd, void *p, size_t n, off_t at) SIZED(pread, READ, p, at)
ssize_t pread64(int fd, void *p, size_t n, off64_t at) SIZED(pread64, READ, p, at)

#define VECTOR(name)                                                                                           \
    {                                                                                                          \
        REAL(name);                                                                                            \
        int now = due(READ, fd_under(fd));                                                                     \
        REFUSE(now);                                                                                           \
        struct iovec one = v[0];                                                                               \
        one.iov_len = LESS(now, one.iov_len);                                                                  \
        ssize_t got = now == SHORT ? real(fd, &one, 1, at) : real(fd, v, n, at);                               \
        AFTER(now, got);                                                                                       \
    }

ssize_t preadv(int fd, const struct iovec *v, int n, off_t at) VECTOR(preadv)
ssize_t preadv64(int fd, const struct iovec *v, int n, off64_t at) VECTOR(preadv64)

#define COPY(name, type)                                                                                       \
    ssize_t name(int to, int from, type *at, size_t n) {                                                       \
        REAL(name);                                                                                            \
        int now = due(WRITE, fd_under(to));                                                                    \
        REFUSE(now);                                                                                           \
        ssize_t got = real(to, from, at, LESS(now, n));                                                        \
        AFTER(now, got);                                                                                       \
    }
COPY(sendfile, off_t)
COPY(sendfile64, off64_t)

#define PLAIN(name, kind, here, ...)                                                                           \
    {                                                                                                          \
        REAL(name);                                                                                            \
        int now = due(kind, here);                                                                             \
        REFUSE(now);                                                                                           \
        int got = real(__VA_ARGS__);                                                                           \
        AFTER(now, got);                                                                                       \
    }

int fsync(int fd) PLAIN(fsync, SYNC, fd_under(fd), fd)
int fdatasync(int fd) PLAIN(fdatasync, SYNC, fd_under(fd), fd)
int ftruncate(int fd, off_t n) PLAIN(ftruncate, NAME, fd_under(fd), fd, n)
int ftruncate64(int fd, off64_t n) PLAIN(ftruncate64, NAME, fd_under(fd), fd, n)
int rename(const char *a, const char *b) PLAIN(rename, NAME, under(a), a, b)
int renameat2(int da, const char *a, int db, const char *b, unsigned flags) PLAIN(renameat2, NAME, under(a), da, a, db, b, flags)
int unlink(const char *a) PLAIN(unlink, NAME, under(a), a)
int mkdir(const char *a, mode_t mode) PLAIN(mkdir, NAME, under(a), a, mode)
