/* A stand-in for disks that fail or are slow: a library to preload (LD_PRELOAD).

   Nothing of it happens in the kernel. The calls below are those of the C library; they act on the files that the
   environment names, and go on to the real calls otherwise:

     STANDIN_ACTION  errno=28: fail with this error
                     hold: wait, once in all, until STANDIN_MARK.go is there, or a signal has come
     STANDIN_FILES   a pattern (fnmatch) for the whole path of the file
     STANDIN_CALLS   r, w, or both: reading, writing
     STANDIN_MARK    a file that is made when it first acts; it holds the process id

   A file that is mapped into memory is read and written without a call, and so unseen. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Whether this call is the first of all to act. */
static int mark(const char *file)
{
    char text[24];
    int descriptor = syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return 0;
    syscall(SYS_write, descriptor, text, (size_t)snprintf(text, sizeof text, "%d\n", (int)getpid()));
    syscall(SYS_close, descriptor);
    return 1;
}

static void hold(const char *file)
{
    char go[PATH_MAX];
    struct timespec tick = {0, 50000000};
    snprintf(go, sizeof go, "%s.go", file);
    for (int ticks = 0; ticks < 20 * 180; ticks++)
        if (syscall(SYS_access, go, F_OK) == 0 || (syscall(SYS_nanosleep, &tick, NULL) == -1 && errno == EINTR))
            return;
}

/* The error that a call on an open file is to fail with; 0: none. */
static int act(int descriptor, char kind)
{
    const char *action = getenv("STANDIN_ACTION"), *calls, *files, *marked;
    char link[40], path[PATH_MAX];
    int before = errno, failure = 0, first;
    ssize_t length;

    if (action == NULL || *action == 0)
        return 0;
    calls = getenv("STANDIN_CALLS"), files = getenv("STANDIN_FILES"), marked = getenv("STANDIN_MARK");
    if (calls == NULL || files == NULL || marked == NULL || strchr(calls, kind) == NULL)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        if (fnmatch(files, path, 0) == 0) {
            first = mark(marked);
            if (strncmp(action, "errno=", 6) == 0)
                failure = atoi(action + 6);
            else if (first && strcmp(action, "hold") == 0)
                hold(marked);
        }
    }
    errno = before;
    return failure;
}

#define FAIL_IF(descriptor, kind, value)       \
    do {                                       \
        int failure = act(descriptor, kind);   \
        if (failure) {                         \
            errno = failure;                   \
            return value;                      \
        }                                      \
    } while (0)

#define CALL(type, name, kind, parameters, arguments)  \
    type name parameters                               \
    {                                                  \
        static __typeof__(&name) real;                 \
        if (real == NULL)                              \
            real = REAL(name);                         \
        FAIL_IF(fd, kind, -1);                         \
        return real arguments;                         \
    }

CALL(ssize_t, read, 'r', (int fd, void *data, size_t size), (fd, data, size))
CALL(ssize_t, pread, 'r', (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
CALL(ssize_t, pread64, 'r', (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))
CALL(ssize_t, readv, 'r', (int fd, const struct iovec *parts, int count), (fd, parts, count))
CALL(ssize_t, write, 'w', (int fd, const void *data, size_t size), (fd, data, size))
CALL(ssize_t, pwrite, 'w', (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
CALL(ssize_t, pwrite64, 'w', (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
CALL(ssize_t, writev, 'w', (int fd, const struct iovec *parts, int count), (fd, parts, count))
CALL(int, fsync, 'w', (int fd), (fd))
CALL(int, fdatasync, 'w', (int fd), (fd))
CALL(ssize_t, sendfile, 'w', (int fd, int from, off_t *at, size_t size), (fd, from, at, size))
CALL(ssize_t, sendfile64, 'w', (int fd, int from, off64_t *at, size_t size), (fd, from, at, size))

size_t fwrite(const void *data, size_t size, size_t count, FILE *stream)
{
    static __typeof__(&fwrite) real;
    if (real == NULL)
        real = REAL(fwrite);
    FAIL_IF(fileno(stream), 'w', 0);
    return real(data, size, count, stream);
}

size_t fread(void *data, size_t size, size_t count, FILE *stream)
{
    static __typeof__(&fread) real;
    if (real == NULL)
        real = REAL(fread);
    FAIL_IF(fileno(stream), 'r', 0);
    return real(data, size, count, stream);
}
