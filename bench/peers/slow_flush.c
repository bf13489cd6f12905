/* Makes each flush of the program that it is preloaded into take SLOW_FLUSH_US microseconds longer.
 *
 * A slow disk, for all peers alike that flush through the C library. Programs that call the kernel
 * themselves (those in Go) are not slowed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

static void rest(void) {
    const char *text = getenv("SLOW_FLUSH_US");
    long us = text ? atol(text) : 0;
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (nanosleep(&left, &left) && errno == EINTR) continue;
}

int fdatasync(int fd) {
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = flush(fd);
    rest();
    return result;
}

int fsync(int fd) {
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    int result = flush(fd);
    rest();
    return result;
}
