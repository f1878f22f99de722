package linux

import (
	"bufio"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// headless is set for the process of which only the first thread ends.
const headless = "GPUMEM_TEST_HEADLESS"

func init() {
	if os.Getenv(headless) != "" {
		runtime.LockOSThread() // init runs on the first thread, and so does main now
	}
}

func TestMain(m *testing.M) {
	if os.Getenv(headless) == "" {
		os.Exit(m.Run())
	}
	go func() {
		os.Stdout.WriteString("runs\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test closes it
		os.Exit(0)
	}()
	_, _, _ = syscall.Syscall(unix.SYS_EXIT, 0, 0, 0) // this thread alone: it does not return
}

// A process whose first thread has ended is a zombie by its state. Its other threads still hold
// its ports.
func TestAProcessIsAliveUntilItsLastThreadEnds(t *testing.T) {
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), headless+"=1")
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(command.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the first thread has ended", func() bool {
		_, state, _, err := stat(p.PID)
		return err == nil && state == 'Z'
	})
	if !p.Alive() {
		t.Error("the process counts as ended while a thread of it runs")
	}
	in.Close()
	until(t, "the process has ended", func() bool { return !p.Alive() })
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
}

func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited for: %s", what)
		}
	}
}
