// A library that shows that it was loaded: it creates the file MARKER.
#include <fcntl.h>
#include <unistd.h>

__attribute__((constructor)) static void loaded(void) {
    int marker = open(MARKER, O_CREAT | O_WRONLY, 0666);
    if (marker >= 0) close(marker);
}
