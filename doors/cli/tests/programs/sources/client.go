// Configures the device by writing attributes and submits by write(), all with raw system calls, as Go programs do.
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

const devices = "/sys/bus/dsa/devices/"

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(holds bool, format string, args ...any) {
	if !holds {
		must(fmt.Errorf(format, args...))
	}
}

func attribute(path, value string) {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(err)
	_, err = file.WriteString(value)
	must(err)
	must(file.Close())
}

func shows(path, value string) {
	text, err := os.ReadFile(path)
	must(err)
	expect(strings.TrimSpace(string(text)) == value, "%s shows %q, not %q", path, text, value)
}

func main() {
	links, err := filepath.Glob(devices + "wq0.*")
	must(err)
	expect(len(links) == 8, "%d queues", len(links))
	target, err := filepath.EvalSymlinks(devices + "wq0.0")
	must(err)
	expect(strings.HasSuffix(target, "/dsa0/wq0.0"), "wq0.0 is %s", target)

	for engine := 0; engine < 4; engine++ {
		attribute(fmt.Sprintf("%sengine0.%d/group_id", devices, engine), "0")
	}
	for _, pair := range [][2]string{
		{"group_id", "0"}, {"mode", "shared"}, {"size", "16"}, {"threshold", "12"}, {"priority", "5"},
		{"type", "user"}, {"name", "golang"}, {"block_on_fault", "1"},
	} {
		attribute(devices+"wq0.0/"+pair[0], pair[1])
	}
	if _, err := os.Stat(devices + "wq0.0/driver_name"); err == nil {
		attribute(devices+"wq0.0/driver_name", "user")
	}
	attribute("/sys/bus/dsa/drivers/idxd/bind", "dsa0\n")
	attribute("/sys/bus/dsa/drivers/user/bind", "wq0.0\n")
	shows(devices+"wq0.0/state", "enabled")

	node, err := os.OpenFile("/dev/dsa/wq0.0", os.O_RDWR, 0)
	must(err)
	// Large enough for an aligned heap allocation; the record needs 32 bytes.
	memory := make([]byte, 1<<16)
	base := (uintptr(unsafe.Pointer(&memory[0])) + 63) &^ 63
	at := int(base - uintptr(unsafe.Pointer(&memory[0])))
	record := (*uint32)(unsafe.Pointer(&memory[at]))
	from, to := memory[at+4096:at+4096+20000], memory[at+32768:at+32768+20000]
	for round := 0; round < 50; round++ {
		for i := range from {
			from[i] = byte(i*7 + round)
		}
		atomic.StoreUint32(record, 0)
		descriptor := make([]byte, 64)
		// Memory Move, block on fault, with a record on request.
		binary.LittleEndian.PutUint64(descriptor, 3<<56|0x0e<<32)
		binary.LittleEndian.PutUint64(descriptor[8:], uint64(base))
		binary.LittleEndian.PutUint64(descriptor[16:], uint64(uintptr(unsafe.Pointer(&from[0]))))
		binary.LittleEndian.PutUint64(descriptor[24:], uint64(uintptr(unsafe.Pointer(&to[0]))))
		binary.LittleEndian.PutUint32(descriptor[32:], uint32(len(to)))
		n, err := node.Write(descriptor)
		must(err)
		expect(n == 64, "%d bytes taken", n)
		until := time.Now().Add(10 * time.Second)
		for atomic.LoadUint32(record)&0xff == 0 {
			expect(time.Now().Before(until), "no record")
		}
		expect(atomic.LoadUint32(record)&0xff == 1, "status %#x", atomic.LoadUint32(record)&0xff)
		expect(bytes.Equal(from, to), "bytes")
	}
	must(node.Close())
	attribute("/sys/bus/dsa/drivers/user/unbind", "wq0.0")
	attribute("/sys/bus/dsa/drivers/idxd/unbind", "dsa0")
	shows(devices+"dsa0/state", "disabled")
	fmt.Println("done")
}
