package linux

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Mount is put into a new mount namespace.
type Mount struct {
	Source string // a folder to bind; empty for a new, empty file system in memory
	Target string // made when it is missing
}

// StartAnchor starts cmd in network, mount and process namespaces of its own.
// The network has nothing but loopback, and forwards; the mounts are the
// machine's and the given ones. The command is to mount the /proc of its
// process namespace and to print a line, which is returned.
func StartAnchor(cmd *exec.Cmd, mounts []Mount) (line string, err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	defer out.Close()
	// The first time that package os handles a process, it starts another one to
	// see what the kernel can do. That must not be the first process of the
	// namespace, which would end with it.
	if _, err := os.FindProcess(os.Getpid()); err != nil {
		return "", err
	}
	err = onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID); err != nil {
			return fmt.Errorf("new namespaces: %w", err)
		}
		if err := setUpNetwork(); err != nil {
			return err
		}
		if err := setUpMounts(mounts); err != nil {
			return err
		}
		return cmd.Start()
	})
	if err != nil {
		return "", err
	}
	return bufio.NewReader(out).ReadString('\n')
}

func setUpNetwork() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		return fmt.Errorf("let the network namespace forward: %w", err)
	}
	return nil
}

func setUpMounts(mounts []Mount) error {
	// Mounts of the machine come in, ours do not go out, and those made in the
	// namespace reach the containers that ask for it.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.Target, 0o755); err != nil {
			return err
		}
		var err error
		if m.Source == "" {
			err = unix.Mount("tmpfs", m.Target, "tmpfs", 0, "mode=0755")
		} else {
			err = unix.Mount(m.Source, m.Target, "", unix.MS_BIND|unix.MS_REC, "")
		}
		if err != nil {
			return fmt.Errorf("mount %q on %s: %w", m.Source, m.Target, err)
		}
	}
	return nil
}

// StartIn starts cmd in the network, process and mount namespaces of the
// process pid. Its working folder is the root unless cmd says otherwise.
func StartIn(pid int, cmd *exec.Cmd) error {
	return onThread(func() error {
		// A thread that shares its root and working folder with others may not
		// change its mount namespace.
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare the working folder: %w", err)
		}
		// The mount namespace is the last, because its /proc is another.
		for _, kind := range []string{"net", "pid", "mnt"} {
			if err := enter(pid, kind); err != nil {
				return err
			}
		}
		return cmd.Start()
	})
}

// DialIn connects to a literal address from the network namespace of the
// process pid.
func DialIn(ctx context.Context, pid int, network, address string) (conn net.Conn, err error) {
	err = onThread(func() error {
		if err := enter(pid, "net"); err != nil {
			return err
		}
		// A literal address is dialed by this goroutine itself, so the socket
		// is made in the namespace, to which it then belongs for good.
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

func enter(pid int, kind string) error {
	name := fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, err)
	}
	defer unix.Close(fd)
	// Zero takes any kind of namespace.
	if err := unix.Setns(fd, 0); err != nil {
		return fmt.Errorf("enter %s: %w", name, err)
	}
	return nil
}

// onThread runs f on a thread of its own, which ends with f and so may change
// its namespaces.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The first thread cannot end alone, and /proc shows its namespaces
			// as the process's. While this goroutine holds it, another gets
			// another.
			err := onThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		// A goroutine that ends locked takes its thread with it.
		done <- f()
	}()
	return <-done
}
