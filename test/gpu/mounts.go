package main

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// inOwnMounts is set in the environment of a process that has mounts of its own.
const inOwnMounts = "GPUMEM_KIT_OWN_MOUNTS"

// withOwnMounts runs this program once more where what it mounts is its own: the supervisor of the
// MPS daemon mounts /dev/shm again, and leaves that to the containers of its node. It reports whether
// it has, and with which code the program has ended. Who is not root can mount nothing anyway.
func withOwnMounts() (code int, done bool, err error) {
	if os.Getuid() != 0 || os.Getenv(inOwnMounts) != "" {
		return 0, false, nil
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inOwnMounts+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	err = runToItsEnd(cmd)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), true, nil
	}
	return 0, err == nil, err
}

// runToItsEnd runs a program, which gets the signals of this one, and waits for what it
// takes away at its end: daemons, control groups.
func runToItsEnd(cmd *exec.Cmd) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, asked()...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended by itself
		case err := <-ended:
			return err
		}
	}
}

// asked are the signals that ask the kit to end. A terminal that is gone does not, for who has
// started the kit by nohup.
func asked() []os.Signal {
	if signal.Ignored(syscall.SIGHUP) {
		return []os.Signal{os.Interrupt, syscall.SIGTERM}
	}
	return []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}
}
