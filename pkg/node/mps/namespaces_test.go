package mps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

// attached returns what a client is granted that has a pipe directory; nothing where none listens.
func attached(t *testing.T, pipe string) (terms []string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", filepath.Join(pipe, "control"))
	if err != nil {
		return nil
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("attach\n")); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "" {
		terms = append(terms, lines.Text())
	}
	return terms
}

func wantTerms(t *testing.T, pipe string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, attached(t, pipe)); diff != "" {
		t.Errorf("%s grants (-want +got):\n%s", pipe, diff)
	}
}

// TestANamespaceLimitsEachClientOfIt: on the daemon's side, also of the next daemon.
func TestANamespaceLimitsEachClientOfIt(t *testing.T) {
	n := newNode(t, 3).run()
	n.eventually("the daemon is healthy", healthy)
	client := NewClient(n.cfg.Dir)
	one, two := NamespacePipe(n.cfg.Dir, "grant_1"), NamespacePipe(n.cfg.Dir, "grant_2")
	for name, want := range map[string]Namespace{"grant_1": {LimitMiB: 3072, Percent: 30}, "grant_2": {LimitMiB: 1024}} {
		if err := client.Serve(t.Context(), name, want); err != nil {
			t.Fatal(err)
		}
	}
	wantTerms(t, one, "threads 30", "limit all 3072M")
	wantTerms(t, two, "threads 100", "limit all 1024M")
	// Who connects past the namespaces gets next to nothing.
	wantTerms(t, filepath.Join(n.pipe(""), server), "threads 1", "limit all 1M")

	before := n.pid()
	if err := syscall.Kill(before, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	n.eventually("another daemon is healthy", func(s Status, err error) bool { return err == nil && s.Healthy && n.pid() != before })
	wantTerms(t, one, "threads 30", "limit all 3072M")

	if err := client.Serve(t.Context(), "grant_1", Namespace{LimitMiB: 2048, Percent: 100}); err != nil {
		t.Fatal(err)
	}
	wantTerms(t, one, "threads 100", "limit all 2048M")
	// The slots of a container with cores go to one without: it is not kept to what that one had.
	for _, percent := range []int{30, 0} {
		if err := client.Serve(t.Context(), "grant_1", Namespace{LimitMiB: 2048, Percent: percent}); err != nil {
			t.Fatal(err)
		}
	}
	wantTerms(t, one, "threads 100", "limit all 2048M")
	for name, want := range map[string]Namespace{"Grant": {LimitMiB: 1}, "a/b": {LimitMiB: 1}, "grant_3": {}, "grant_4": {LimitMiB: 1, Percent: 101}} {
		if err := client.Serve(t.Context(), name, want); err == nil {
			t.Errorf("%s of %+v is served", name, want)
		}
	}
	if err := n.end(); err != nil {
		t.Error(err)
	}
	if err := client.Serve(t.Context(), "grant_1", Namespace{LimitMiB: 1}); err == nil {
		t.Error("a supervisor that has ended serves")
	}
}

// TestNamespacesGoWithTheirContainers, and not before: one that no process has mounted may be of a
// container that is about to start.
func TestNamespacesGoWithTheirContainers(t *testing.T) {
	n := newNode(t, 3)
	s := New(n.cfg, n.modes, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	n.eventually("the daemon is healthy", healthy)
	for _, name := range []string{"old", "young"} {
		if err := s.Serve(t.Context(), name, Namespace{LimitMiB: 1024}); err != nil {
			t.Fatal(err)
		}
	}
	s.spaces.mu.Lock()
	s.spaces.named["old"] = entry{s.spaces.named["old"].Namespace, time.Now().Add(-grace)}
	s.spaces.mu.Unlock()
	if err := s.spaces.sweep(t.Context(), s.control()); err != nil {
		t.Error(err)
	}
	for name, there := range map[string]bool{"old": false, "young": true} {
		if _, err := os.Stat(NamespacePipe(n.cfg.Dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(n.cfg.Dir, namespacesFile))
	if err != nil || strings.Contains(string(text), "old") || !strings.Contains(string(text), "young") {
		t.Errorf("the next daemon begins with %s, %v", text, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	mounted, err := mountPoints("/proc")
	if err != nil || !mounted["/proc"] {
		t.Errorf("/proc is not among the mounts %v, %v", mounted, err)
	}
}

// Of a file that names nothing, one goes on as without it.
func TestAFileOfNoNamespaces(t *testing.T) {
	n := newNode(t, 3)
	if err := os.WriteFile(filepath.Join(n.cfg.Dir, namespacesFile), []byte("null"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.run().eventually("the daemon is healthy", healthy)
	if err := NewClient(n.cfg.Dir).Serve(t.Context(), "grant_1", Namespace{LimitMiB: 1024}); err != nil {
		t.Error(err)
	}
}

func TestAmountMiB(t *testing.T) {
	for s, want := range map[string]int64{"4G": 4096, "512M": 512, "1024K": 1, "0M": 0, "1K": -1, "G": -1, "-1M": -1, "": -1, "4": -1} {
		got, ok := amountMiB(s)
		if ok != (want >= 0) || ok && got != want {
			t.Errorf("%q is %d MiB, %t; want %d", s, got, ok, want)
		}
	}
}

// TestADaemonIsHealthyOnceAClientWasLimited: on each GPU, with the pipe directory that clients have.
func TestADaemonIsHealthyOnceAClientWasLimited(t *testing.T) {
	for protocol, want := range map[int][]string{
		2: {"CUDA_VISIBLE_DEVICES=%d", "CUDA_MPS_PIPE_DIRECTORY=FOLDER/clients", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1024M"},
		3: {"CUDA_VISIBLE_DEVICES=%d", "CUDA_MPS_PIPE_DIRECTORY=FOLDER/clients/gpumem/gpumem_probe"},
	} {
		t.Run(fmt.Sprint("protocol ", protocol), func(t *testing.T) {
			n := newNode(t, protocol)
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
		})
	}
	n := newNode(t, 2)
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
			n := newNode(t, 2)
			n.cfg.Free = func() ([]int64, error) { return tc.free, nil }
			probed := make(chan string, 10)
			n.cfg.Probe = func(_ context.Context, env []string) error {
				probed <- env[slices.IndexFunc(env, func(v string) bool { return strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=") })]
				return nil
			}
			n.run()
			n.eventually("it is known", tc.holds)
			if _, gpus, _ := NewClient(n.cfg.Dir).Check(t.Context()); !slices.Equal(gpus, tc.says) {
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
	n := newNode(t, 2)
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
