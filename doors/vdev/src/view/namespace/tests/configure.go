// A Go program: raw system calls, no C library. Configures a queue by files and uses it by write().
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	check(os.WriteFile("/sys/bus/dsa/devices/wq0.0/name", []byte("from Go"), 0o644))
	text, err := os.ReadFile("/sys/bus/dsa/devices/wq0.0/name")
	check(err)
	check(os.WriteFile("/sys/bus/dsa/drivers/user/bind", []byte("wq0.0\n"), 0o200))
	state, err := os.ReadFile("/sys/bus/dsa/devices/dsa0/state")
	check(err)

	node, err := syscall.Open("/dev/dsa/wq0.0", syscall.O_RDWR, 0)
	check(err)
	memory := make([]byte, 64)
	record := memory[(32-uintptr(unsafe.Pointer(&memory[0]))%32)%32:]
	var pinner runtime.Pinner
	pinner.Pin(&memory[0])
	descriptor := make([]byte, 64)
	binary.LittleEndian.PutUint32(descriptor[4:], 0xc)
	binary.LittleEndian.PutUint64(descriptor[8:], uint64(uintptr(unsafe.Pointer(&record[0]))))
	written, err := syscall.Write(node, descriptor)
	check(err)
	fmt.Println(strings.TrimSpace(string(text)), strings.TrimSpace(string(state)), written, record[0])
}
