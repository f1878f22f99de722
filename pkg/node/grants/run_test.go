package grants_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/deviceplugin"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

// listing records the times of the calls to the kubelet, since the start of the test.
type listing struct {
	*plugintest.Kubelet

	start time.Time
	mu    sync.Mutex
	at    []time.Duration
	fail  error
}

func (l *listing) List(ctx context.Context) ([]allocation.Allocated, map[string]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.at = append(l.at, time.Since(l.start))
	if l.fail != nil {
		return nil, nil, l.fail
	}
	return l.Kubelet.List(ctx)
}

// since returns the times of the calls after time t, relative to t.
func (l *listing) since(t time.Duration) (out []time.Duration) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if at > t {
			out = append(out, at-t)
		}
	}
	return out
}

func (l *listing) set(fail error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = fail
}

// TestWhenAssignmentsAreReconciled covers the pauses of the loop: growing pauses after failures, a short pause
// after a change, and otherwise a minute. The loop logs repeated failures once.
func TestWhenAssignmentsAreReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const second, debounce = time.Second, 100 * time.Millisecond
		n := plugintest.NewNode(nil)
		kubelet := &listing{Kubelet: n.Kubelet, start: time.Now(), fail: errors.New("no such socket")}
		core, logs := observer.New(zap.WarnLevel)
		p := deviceplugin.New(deviceplugin.DefaultConfig("n1"), n.Source, n.Pods, kubelet, n.Notes, n.Counts, zap.New(core))
		if err := p.State.Load(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Reconciler.Run(ctx) }()
		want := func(what string, from time.Duration, want ...time.Duration) {
			t.Helper()
			if got := kubelet.since(from); !slices.Equal(got, want) {
				t.Errorf("%s: calls after %v, want %v", what, got, want)
			}
		}
		time.Sleep(200 * second) // the pauses are 1, 2, 4, 8, 16, 32, 60 and 60 seconds
		want("failures", 0, 1*second, 3*second, 7*second, 15*second, 31*second, 63*second, 123*second, 183*second)
		if n := logs.FilterMessage("assignments not reconciled").Len(); n != 1 {
			t.Errorf("%d lines about one failure", n)
		}
		kubelet.set(errors.New("another failure"))
		time.Sleep(50 * second) // at 250 s; a call at 243 s
		kubelet.set(nil)
		time.Sleep(170 * second) // at 420 s
		want("a success", 250*second, 53*second, 113*second)
		if n := logs.FilterMessage("assignments not reconciled").Len(); n != 2 {
			t.Errorf("%d lines about two failures", n)
		}
		kubelet.set(errors.New("another failure"))
		time.Sleep(10 * second) // at 430 s; calls at 423, 424, 426 and 430 s
		want("failures after a success", 420*second, 3*second, 4*second, 6*second, 10*second)
		if n := logs.FilterMessage("assignments not reconciled").Len(); n != 3 {
			t.Errorf("%d lines about three failures", n)
		}
		kubelet.set(nil)
		time.Sleep(10 * second) // at 440 s; a call at 438 s
		for _, change := range []func(){
			p.Reconciler.Kick, func() { n.Pods.Set() }, func() { n.Source.Set(func(*gpu.Inventory) {}) },
		} {
			from := time.Since(kubelet.start)
			change()
			time.Sleep(10 * second)
			want("a change", from, debounce)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
