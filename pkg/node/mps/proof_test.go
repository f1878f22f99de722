package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/node/inventory"
)

// TestADaemonIsHealthyOnceAClientWasLimited verifies that the supervisor probes each GPU through the pipe directory
// of clients.
func TestADaemonIsHealthyOnceAClientWasLimited(t *testing.T) {
	want := []string{"CUDA_VISIBLE_DEVICES=%d", "CUDA_MPS_PIPE_DIRECTORY=FOLDER/clients", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"}
	n := newNode(t)
	var asked atomic.Int32
	n.cfg.Probe = func(_ context.Context, env []string) error {
		client := asked.Add(1) - 1
		gpu := []int{0, 1, 0}[client] // the first probe fails
		for _, variable := range want {
			variable = strings.ReplaceAll(strings.ReplaceAll(variable, "FOLDER", n.cfg.Dir), "%d", fmt.Sprint(gpu))
			if !slices.Contains(env, variable) {
				t.Errorf("client %d: no %s", client, variable)
			}
		}
		if client == 0 {
			return errors.New("it got everything")
		}
		return nil
	}
	n.run()
	n.eventually("it limits clients of both", func(s Status, err error) bool { return healthy(s, err) && slices.Equal(s.Proven, []int{0, 1}) })
	if asked.Load() != 3 {
		t.Errorf("%d clients were started, want one for each of two GPUs and one that failed", asked.Load())
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

func TestADaemonThatLimitsNoClient(t *testing.T) {
	n := newNode(t)
	n.cfg.Probe = func(context.Context, []string) error { return errors.New("it got everything") }
	n.run()
	n.eventually("a daemon that limits nobody is not healthy", sick("it does not limit GPU 0: it got everything"))
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestGPUsOfOthersAreNotProbed covers GPUs in MIG mode, and GPUs of another device plugin.
func TestGPUsOfOthersAreNotProbed(t *testing.T) {
	for name, tc := range map[string]struct {
		open  []bool
		holds func(Status, error) bool
		gpus  []string
		says  []int
	}{
		"one of two": {[]bool{false, true}, healthy, []string{"CUDA_VISIBLE_DEVICES=1"}, []int{1}},
		"both":       {[]bool{false, false}, sick("no GPU is for clients"), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
				gpus := twoGPUs()
				for i := range gpus {
					gpus[i].Closed = !tc.open[i]
				}
				return gpus, true, nil
			}
			probed := make(chan string, 10)
			n.cfg.Probe = func(_ context.Context, env []string) error {
				probed <- env[slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })]
				return nil
			}
			n.run()
			n.eventually("it is known", tc.holds)
			if gpus, _ := NewClient(n.cfg.Dir).Check(t.Context()); !slices.Equal(gpus, tc.says) {
				t.Errorf("it says that clients are limited on %v, want %v", gpus, tc.says)
			}
			if err := n.end(); err != nil {
				t.Error(err)
			}
			close(probed)
			var gpus []string
			for gpu := range probed {
				gpus = append(gpus, gpu)
			}
			if diff := cmp.Diff(tc.gpus, gpus); diff != "" {
				t.Errorf("probed (-want +got):\n%s", diff)
			}
		})
	}
}

// TestProbesThatFailBecomeRare verifies the growing pause: each probe uses GPU memory that programs may need.
func TestProbesThatFailBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p proof
		probes, begin := 0, time.Now()
		fails := errors.New("it got everything")
		probe := func() error { probes++; return fails }
		for time.Since(begin) < time.Hour {
			if err := p.renew(2*time.Second, probe); !errors.Is(err, fails) {
				t.Fatalf("what the last probe said is forgotten: %v", err)
			}
			time.Sleep(2 * time.Second)
		}
		if probes < 60 || probes > 65 {
			t.Errorf("%d probes in an hour, want one a minute", probes)
		}
		fails = nil
		time.Sleep(maxPause)
		if err := p.renew(2*time.Second, probe); err != nil {
			t.Error(err)
		}
		was := probes
		time.Sleep(time.Hour)
		if err := p.renew(2*time.Second, probe); err != nil || probes != was {
			t.Errorf("%d probes after one that succeeded, %v", probes-was, err)
		}
	})
}

// TestAFullGPUProvesNoLimit verifies that a failed allocation on a full GPU proves nothing. The other GPU can still
// prove its limit.
func TestAFullGPUProvesNoLimit(t *testing.T) {
	n := newNode(t)
	free := [2]atomic.Int64{}
	n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
		gpus := twoGPUs()
		gpus[0].Free, gpus[1].Free = free[0].Load(), free[1].Load()
		return gpus, true, nil
	}
	free[0].Store(2047)
	free[1].Store(2047)
	n.run()
	n.eventually("a daemon with full GPUs is not healthy", sick("no client was seen to be limited: GPU 1 has less than 2048 MiB free"))
	limits := func(gpus ...int) func(Status, error) bool {
		return func(s Status, err error) bool { return healthy(s, err) && slices.Equal(s.Proven, gpus) }
	}
	free[0].Store(2048)
	n.eventually("it limits clients of the GPU with free memory", limits(0))
	free[1].Store(2048)
	n.eventually("it limits clients of both", limits(0, 1))
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestALostGPUKeepsMPSFromNoOther verifies that the daemon serves the GPUs that answer at its start, and no others
// until it ends.
func TestALostGPUKeepsMPSFromNoOther(t *testing.T) {
	n := newNode(t)
	var lost atomic.Bool
	lost.Store(true)
	n.cfg.GPUs = func() ([]inventory.Part, bool, error) {
		if lost.Load() {
			return twoGPUs()[1:], false, nil
		}
		return twoGPUs(), true, nil
	}
	probed := make(chan string, 10)
	n.cfg.Probe = func(_ context.Context, env []string) error {
		probed <- env[slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })]
		return nil
	}
	n.run()
	s := n.eventually("the other GPU has its proof", healthy)
	if got := <-probed; !slices.Equal(s.Proven, []int{1}) || got != "CUDA_VISIBLE_DEVICES=GPU-b" {
		t.Errorf("proven %v by %s", s.Proven, got)
	}
	if diff := cmp.Diff([]string{settings[0], settings[1], "set_default_device_pinned_mem_limit 0 80896M"}, n.told()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	lost.Store(false)
	if err := syscall.Kill(n.pid(), syscall.SIGKILL); err != nil { // the supervisor restarts the daemon
		t.Fatal(err)
	}
	n.eventually("both have their proof", func(s Status, err error) bool { return healthy(s, err) && slices.Equal(s.Proven, []int{0, 1}) })
	if err := n.end(); err != nil {
		t.Error(err)
	}
}

// TestADrainGoesOnWhenOneQuestionFails verifies that a daemon counts as having clients while it cannot list
// them.
func TestADrainGoesOnWhenOneQuestionFails(t *testing.T) {
	n := newNode(t)
	n.cfg.Quit = n.cfg.Interval // so that the supervisor soon kills a daemon that does not quit
	n.run()
	n.eventually("it is healthy", healthy)
	n.steer("clients", "17\n23\n")
	n.eventually("two clients", func(s Status, err error) bool { return healthy(s, err) && s.Clients == 2 })
	n.steer("broken", "get_server_list get_client_list")
	n.stop()
	for range 50 { // queries
		n.eventually("it drains", sick("about to end"))
		select {
		case err := <-n.ended:
			t.Fatalf("the daemon was ended under its clients: %v", err)
		case <-time.After(n.cfg.Interval):
		}
	}
	n.steer("broken", "")
	n.steer("clients", "")
	if err := n.end(); err != nil {
		t.Error(err)
	}
}
