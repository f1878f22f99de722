// Program pause does nothing until it is told to end. It holds the namespaces
// of a pod, as the first process of its sandbox.
//
// With the argument "anchor" it holds those of a test cluster's node: as the
// first process of a process namespace it mounts the /proc that shows that
// namespace, says so on its standard output and goes on.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	// As the first process of a process namespace it inherits the orphans.
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	if len(os.Args) > 1 && os.Args[1] == "anchor" {
		if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
			fmt.Println("mount /proc:", err)
			os.Exit(1)
		}
		fmt.Println("ready")
	}
	for {
		select {
		case <-stop:
			return
		case <-children:
			reap()
		}
	}
}

func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if pid <= 0 && err != syscall.EINTR {
			return
		}
	}
}
