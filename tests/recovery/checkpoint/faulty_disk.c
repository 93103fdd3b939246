/* A disk that fails when a test says so. Preload it (LD_PRELOAD): calls on files below FAULTY_DISK_PATH are counted in
 * the words of the file FAULTY_DISK_CONTROL, which the test maps too, and the n-th fails, is cut short, waits, or ends
 * the process. Writes may also take their turn on a device of a fixed rate that all processes with that file share.
 * Only programs whose command line contains FAULTY_DISK_PROGRAM, if that is set. faulty_disk.py has the other side. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, WRITE = 2, SYNC = 4, RENAME = 8, REMOVE = 16, MKDIR = 32, TRUNCATE = 64, READ = 128, STAT = 256, LIST = 512 };
enum { SHORT = -1, DELAY = -2, KILL = -3, NOT_DIRECT = -4 };
struct control { int64_t kinds, seen, first, last, fault, amount, struck, rate, free_at; };

static struct control *control;
static const char *place;
static size_t place_bytes;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULTY_DISK_CONTROL"), *program = getenv("FAULTY_DISK_PROGRAM");
    char line[4096] = "";
    if (!path || !(place = getenv("FAULTY_DISK_PATH"))) return;
    place_bytes = strlen(place);
    if (program) {
        int fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY);
        ssize_t count = syscall(SYS_read, fd, line, sizeof line - 1);
        syscall(SYS_close, fd);
        if (count <= 0 || !memmem(line, count, program, strlen(program))) return;
    }
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    void *found = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (found == MAP_FAILED) abort();
    control = found;
    syscall(SYS_close, fd);
}

static int below(const char *path) {
    return !strncmp(path, place, place_bytes) && (path[place_bytes] == '/' || !path[place_bytes]);
}

static int path_of(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t count = syscall(SYS_readlink, link, out, PATH_MAX - 1);
    out[count > 0 ? count : 0] = 0;
    return count > 0;
}

static int mine(int fd, const char *path) {
    char at[PATH_MAX];
    if (!control) return 0;
    if (path && *path == '/') return below(path);
    return fd >= 0 && path_of(fd, at) && below(at);
}

static void pause_ns(int64_t nanoseconds) {
    struct timespec left = {nanoseconds / 1000000000, nanoseconds % 1000000000};
    while (nanoseconds > 0 && nanosleep(&left, &left) && errno == EINTR) {}
}

/* Whether the call is to fail: errno is set. `allowed`, of a write, is how many bytes may be written. */
static int strikes(int kind, int fd, size_t *allowed) {
    if (!(control->kinds & kind)) return 0;
    int64_t number = __atomic_add_fetch(&control->seen, 1, __ATOMIC_SEQ_CST);
    if (number < control->first || number > control->last || (control->fault == SHORT && !allowed)) return 0;
    if (control->fault == NOT_DIRECT && (fd < 0 || !(fcntl(fd, F_GETFL) & O_DIRECT))) return 0;
    __atomic_add_fetch(&control->struck, 1, __ATOMIC_SEQ_CST);
    if (control->fault == KILL) kill(getpid(), SIGKILL);
    if (control->fault == DELAY) pause_ns(control->amount * 1000);
    if (control->fault == SHORT && (size_t)control->amount < *allowed) *allowed = control->amount;
    errno = control->fault == NOT_DIRECT ? EINVAL : control->fault > 0 ? (int)control->fault : errno;
    return control->fault > 0 || control->fault == NOT_DIRECT;
}

static void take_turn(size_t count) {
    struct timespec now;
    if (!control->rate) return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t at = now.tv_sec * 1000000000LL + now.tv_nsec, busy = __atomic_load_n(&control->free_at, __ATOMIC_SEQ_CST), end;
    do end = (busy > at ? busy : at) + (int64_t)(count * 1e9 / control->rate);
    while (!__atomic_compare_exchange_n(&control->free_at, &busy, end, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    pause_ns(end - at);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (mine(-1, path) && strikes(OPEN, -1, NULL)) return -1; \
        return REAL(name)(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int fd, const char *path, int flags, ...) { \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        if (mine(fd, path) && strikes(OPEN, -1, NULL)) return -1; \
        return REAL(name)(fd, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int fd, const void *data, size_t count) {
    if (mine(fd, NULL)) {
        if (strikes(WRITE, fd, &count)) return -1;
        take_turn(count);
    }
    return REAL(write)(fd, data, count);
}

#define WRITES_AT(name, offset) \
    ssize_t name(int fd, const void *data, size_t count, offset at) { \
        if (mine(fd, NULL)) { \
            if (strikes(WRITE, fd, &count)) return -1; \
            take_turn(count); \
        } \
        return REAL(name)(fd, data, count, at); \
    }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)

#define READS(name, parameters, arguments) \
    ssize_t name parameters { \
        if (mine(fd, NULL) && strikes(READ, -1, NULL)) return -1; \
        return REAL(name) arguments; \
    }
READS(read, (int fd, void *data, size_t count), (fd, data, count))
READS(pread, (int fd, void *data, size_t count, off_t at), (fd, data, count, at))
READS(pread64, (int fd, void *data, size_t count, off64_t at), (fd, data, count, at))
READS(preadv, (int fd, const struct iovec *data, int count, off_t at), (fd, data, count, at))
READS(preadv64, (int fd, const struct iovec *data, int count, off64_t at), (fd, data, count, at))
READS(preadv2, (int fd, const struct iovec *data, int count, off_t at, int flags), (fd, data, count, at, flags))
READS(preadv64v2, (int fd, const struct iovec *data, int count, off64_t at, int flags), (fd, data, count, at, flags))

#define CALLS(kind, name, parameters, arguments, fd, path) \
    int name parameters { \
        if (mine(fd, path) && strikes(kind, -1, NULL)) return -1; \
        return REAL(name) arguments; \
    }
CALLS(SYNC, fsync, (int fd), (fd), fd, NULL)
CALLS(SYNC, fdatasync, (int fd), (fd), fd, NULL)
CALLS(TRUNCATE, ftruncate, (int fd, off_t size), (fd, size), fd, NULL)
CALLS(TRUNCATE, ftruncate64, (int fd, off64_t size), (fd, size), fd, NULL)
CALLS(RENAME, rename, (const char *old, const char *new), (old, new), -1, new)
CALLS(RENAME, link, (const char *old, const char *new), (old, new), -1, new)
CALLS(RENAME, linkat, (int from, const char *old, int fd, const char *new, int flags), (from, old, fd, new, flags), fd, new)
CALLS(REMOVE, unlink, (const char *path), (path), -1, path)
CALLS(REMOVE, rmdir, (const char *path), (path), -1, path)
CALLS(REMOVE, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), fd, path)
CALLS(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), -1, path)
CALLS(STAT, stat, (const char *path, struct stat *out), (path, out), -1, path)
CALLS(STAT, stat64, (const char *path, struct stat64 *out), (path, out), -1, path)
CALLS(STAT, lstat, (const char *path, struct stat *out), (path, out), -1, path)
CALLS(STAT, lstat64, (const char *path, struct stat64 *out), (path, out), -1, path)
CALLS(STAT, fstatat, (int fd, const char *path, struct stat *out, int flags), (fd, path, out, flags), fd, path)
CALLS(STAT, fstatat64, (int fd, const char *path, struct stat64 *out, int flags), (fd, path, out, flags), fd, path)

DIR *opendir(const char *path) {
    if (mine(-1, path) && strikes(LIST, -1, NULL)) return NULL;
    return REAL(opendir)(path);
}

/* A process that waits for a core for minutes, on a machine that tests load, is no fault of a disk. */
int nice(int by) {
    return control ? 0 : REAL(nice)(by);
}
