package mps

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestADaemonIsHealthyOnceAClientWasLimited: on each GPU, with the pipe directory that clients have.
func TestADaemonIsHealthyOnceAClientWasLimited(t *testing.T) {
	want := []string{"CUDA_VISIBLE_DEVICES=%d", "CUDA_MPS_PIPE_DIRECTORY=FOLDER/clients", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"}
	n := newNode(t)
	limits := make(chan bool, 1)
	limits <- false
	var asked atomic.Int32
	n.cfg.Probe = func(_ context.Context, env []string) error {
		gpu := asked.Load() % 2
		for _, variable := range want {
			variable = strings.ReplaceAll(strings.ReplaceAll(variable, "FOLDER", n.cfg.Dir), "%d", fmt.Sprint(gpu))
			if !slices.Contains(env, variable) {
				t.Errorf("client %d: no %s", asked.Load(), variable)
			}
		}
		select {
		case <-limits:
			return errors.New("it got everything")
		default:
			asked.Add(1)
			return nil
		}
	}
	n.run()
	n.eventually("it is healthy", healthy)
	if asked.Load() != 2 {
		t.Errorf("%d clients were limited, want one of each of two GPUs", asked.Load())
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

// TestGPUsOfOthersAreNotProbed: in MIG mode, or left to another device plugin.
func TestGPUsOfOthersAreNotProbed(t *testing.T) {
	for name, tc := range map[string]struct {
		free  []int64
		holds func(Status, error) bool
		gpus  []string
		says  []int
	}{
		"one of two": {[]int64{-1, 80896}, healthy, []string{"CUDA_VISIBLE_DEVICES=1"}, []int{1}},
		"both":       {[]int64{-1, -1}, sick("no GPU is for clients"), nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.cfg.Free = func() ([]int64, error) { return tc.free, nil }
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

// TestProbesThatFailBecomeRare: each takes memory of the GPUs that programs want.
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

// TestAFullGPUProvesNoLimit: a client that gets nothing there may have met the end of the GPU.
func TestAFullGPUProvesNoLimit(t *testing.T) {
	n := newNode(t)
	var free atomic.Int64
	n.cfg.Free = func() ([]int64, error) { return []int64{14336, free.Load()}, nil }
	free.Store(2047)
	n.run()
	n.eventually("a daemon with a full GPU is not healthy", sick("no client was seen to be limited: GPU 1 has less than 2048 MiB free"))
	free.Store(2048)
	n.eventually("it is healthy once memory is free", healthy)
	if err := n.end(); err != nil {
		t.Error(err)
	}
}
