/* Registers its own userfaultfd on memory that is managed, answers its page faults for some time, and unregisters
 * the memory again. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

#define CHECK(is_so) \
    do { \
        if (!(is_so)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #is_so, strerror(errno)); \
            exit(1); \
        } \
    } while (0)

enum { PAGE = 4096, PAGES = 4096, FAULTS = 100 };

static unsigned char *memory;
static sem_t asked, answered;
static volatile unsigned char *wanted;
static volatile unsigned char found;

static void *touch(void *unused) {
    (void)unused;
    for (int i = 0; i < FAULTS; i++) {
        sem_wait(&asked);
        found = *wanted;
        sem_post(&answered);
    }
    return NULL;
}

static struct uffdio_register whole(void) {
    struct uffdio_register what = {.range = {.start = (unsigned long)memory, .len = (unsigned long)PAGES * PAGE},
                                   .mode = UFFDIO_REGISTER_MODE_MISSING};
    return what;
}

/* By bare system calls: the library does not see these and keeps the memory. */
static void wait_until_managed(int fd) {
    for (int i = 0; i < 6000; i++) {
        struct uffdio_register what = whole();
        if (syscall(SYS_ioctl, fd, UFFDIO_REGISTER, &what) != 0) {
            CHECK(errno == EBUSY);
            return;
        }
        CHECK(syscall(SYS_ioctl, fd, UFFDIO_UNREGISTER, &what.range) == 0);
        usleep(10000);
    }
    fprintf(stderr, "the memory is not managed within a minute\n");
    exit(1);
}

int main(void) {
    memory = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    for (int page = 0; page < PAGES; page++)
        memset(memory + (size_t)page * PAGE, page % 251, PAGE);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    CHECK(fd >= 0);
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0);
    CHECK(sem_init(&asked, 0, 0) == 0 && sem_init(&answered, 0, 0) == 0);
    pthread_t toucher;
    CHECK(pthread_create(&toucher, NULL, touch, NULL) == 0);

    wait_until_managed(fd);
    struct uffdio_register what = whole();
    CHECK(ioctl(fd, UFFDIO_REGISTER, &what) == 0);
    for (int page = 0; page < PAGES; page++)
        CHECK(memory[(size_t)page * PAGE + 7] == page % 251);
    /* Two seconds, in which the library scans the memory many times. */
    unsigned char copy[PAGE];
    for (int i = 0; i < FAULTS; i++) {
        unsigned char *page = memory + (size_t)(i * 37 % PAGES) * PAGE;
        CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
        wanted = page + 7;
        sem_post(&asked);
        struct uffd_msg message;
        CHECK(read(fd, &message, sizeof message) == sizeof message);
        CHECK(message.event == UFFD_EVENT_PAGEFAULT &&
              (message.arg.pagefault.address & ~(PAGE - 1ul)) == (unsigned long)page);
        memset(copy, 100 + i, PAGE);
        struct uffdio_copy put = {.dst = (unsigned long)page, .src = (unsigned long)copy, .len = PAGE};
        CHECK(ioctl(fd, UFFDIO_COPY, &put) == 0);
        sem_wait(&answered);
        CHECK(found == (unsigned char)(100 + i));
        usleep(20000);
    }
    CHECK(pthread_join(toucher, NULL) == 0);
    CHECK(ioctl(fd, UFFDIO_UNREGISTER, &what.range) == 0);
    wait_until_managed(fd);
    /* If the kernel refuses for another reason, the library does not repeat the call. */
    struct uffdio_register none = whole();
    none.range.len = 1;
    CHECK(ioctl(fd, UFFDIO_REGISTER, &none) == -1 && errno == EINVAL);
    CHECK(ioctl(fd, UFFDIO_REGISTER, NULL) == -1 && errno == EFAULT);
    puts("done");
    return 0;
}
