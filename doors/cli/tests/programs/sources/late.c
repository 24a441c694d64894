/* libaccel-config loaded at run time, under either of its names: the library's own calls see the device's tree. */
#include "client.h"
#include <dlfcn.h>
#include <limits.h>

int main(int argc, char **argv)
{
	void *library = dlopen(argc > 1 ? argv[1] : "libaccel-config.so.1", RTLD_NOW);
	EXPECT(library, "%s", dlerror());
	int (*make)(void **) = (int (*)(void **))dlsym(library, "accfg_new");
	void *(*first)(void *) = (void *(*)(void *))dlsym(library, "accfg_device_get_first");
	const char *(*name)(void *) = (const char *(*)(void *))dlsym(library, "accfg_device_get_devname");
	void *(*first_wq)(void *) = (void *(*)(void *))dlsym(library, "accfg_wq_get_first");
	int (*path)(void *, char *, size_t) = (int (*)(void *, char *, size_t))dlsym(library, "accfg_wq_get_user_dev_path");
	EXPECT(make && first && name && first_wq && path, "symbols");
	void *context;
	EXPECT(make(&context) == 0, "accfg_new");
	void *device = first(context);
	EXPECT(device && strcmp(name(device), "dsa0") == 0, "the first device");
	void *wq = first_wq(device);
	char node[PATH_MAX] = "";
	EXPECT(wq && path(wq, node, sizeof node) >= 0, "the first queue's node");
	EXPECT(strcmp(node, SHARED) == 0 || strcmp(node, DEDICATED) == 0, "%s", node);
	struct queue q = open_queue(node);
	expect_alive(&q);
	close_queue(&q);
	return 0;
}
