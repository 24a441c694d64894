// A Go program: raw system calls, no C library. Configures a queue by files and submits by write().
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
	devices := "/sys/bus/dsa/devices/"
	for _, setting := range [][2]string{
		{"engine0.0/group_id", "0"},
		{"wq0.0/group_id", "0"},
		{"wq0.0/mode", "shared"},
		{"wq0.0/size", "16"},
		{"wq0.0/threshold", "8"},
		{"wq0.0/priority", "10"},
		{"wq0.0/type", "user"},
		{"wq0.0/name", "from Go\n"},
		{"../drivers/idxd/bind", "dsa0"},
		{"../drivers/user/bind", "wq0.0\n"},
	} {
		check(os.WriteFile(devices+setting[0], []byte(setting[1]), 0o644))
	}
	name, err := os.ReadFile(devices + "wq0.0/name")
	check(err)
	state, err := os.ReadFile(devices + "dsa0/wq0.0/state")
	check(err)
	entries, err := os.ReadDir("/dev/dsa")
	check(err)

	node, err := syscall.Open("/dev/dsa/"+entries[0].Name(), syscall.O_RDWR, 0)
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
	fmt.Println(strings.TrimSpace(string(name)), strings.TrimSpace(string(state)), written, record[0])
}
