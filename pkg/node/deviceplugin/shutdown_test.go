package deviceplugin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/grants/allocation"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestAPluginLeavesWhenNoPodWaits(t *testing.T) {
	waits, runs := pod("waits", 1, uuidA, app(3)), pod("runs", 1, uuidA, app(3))
	runs.Admitted = true
	written := func(context.Context) error { return nil }
	away := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	admitted := func(p *plugintest.Pods) {
		time.AfterFunc(5*time.Second, func() { p.Settle("waits") })
	}
	starts := pod("starts", 1, uuidA, app(3))
	starts.Admitted, starts.Starting = true, true
	started := func(p *plugintest.Pods) {
		time.AfterFunc(6*time.Second, func() { p.Started("starts") })
	}
	removed := func(p *plugintest.Pods) {
		time.AfterFunc(4*time.Second, func() { p.Set(runs) })
	}
	for name, tc := range map[string]struct {
		pods     []allocation.Pod
		behind   []allocation.Pod // bound while the plugin begins to leave
		withdraw func(context.Context) error
		then     func(*plugintest.Pods)
		want     time.Duration
	}{
		"none":                                {[]allocation.Pod{runs}, nil, written, nil, bindingWait},
		"one that is admitted":                {[]allocation.Pod{runs, waits}, nil, written, admitted, 5 * time.Second},
		"one that is deleted":                 {[]allocation.Pod{waits}, nil, written, removed, 4 * time.Second},
		"one that was just bound":             {nil, []allocation.Pod{waits}, written, admitted, 5 * time.Second},
		"one that is never admitted":          {[]allocation.Pod{waits}, nil, written, nil, bindingWait + admitWait},
		"one whose containers are made":       {[]allocation.Pod{starts}, nil, written, started, 6 * time.Second},
		"one whose containers are never made": {[]allocation.Pod{runs, starts}, nil, written, nil, bindingWait + startWait},
		"one, and the API server is away":     {[]allocation.Pod{waits}, nil, away, nil, withdrawWait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := plugintest.NewPods(tc.pods...)
				p.Behind = tc.behind
				plugin := New(DefaultConfig("n1"), plugintest.NewSource(plugintest.TwoGPUs()), p, nil, &plugintest.Notes{}, &plugintest.Counts{}, zap.NewNop())
				if tc.then != nil {
					tc.then(p)
				}
				began := time.Now()
				plugin.Announcer.Shutdown(t.Context(), tc.withdraw)
				if took := time.Since(began); took != tc.want {
					t.Errorf("left after %s, want %s", took, tc.want)
				}
			})
		})
	}
}

// Shutdown first withdraws the inventory from schedulers. The kubelet still receives device lists and answers
// as before, for the pods that are already bound.
func TestAPluginThatLeavesServesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := pod("waits", 1, uuidB, app(3))
		n := newNode(t, nil, nil, waits)
		offered := n.Free()
		withdrawn, left := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(left)
			n.Announcer.Shutdown(t.Context(), func(context.Context) error { close(withdrawn); return nil })
		}()
		<-withdrawn
		select {
		case <-left:
			t.Fatal("left before the kubelet has admitted the pod")
		case <-time.After(bindingWait + time.Second):
		}
		if got := n.Free(); len(got) != len(offered) {
			t.Errorf("the kubelet is offered %d units, want %d", len(got), len(offered))
		}
		if gpus, err := n.Admit(t, waits); err != nil || gpus[0] != "main=1" {
			t.Errorf("the pod gets %v, %v, want GPU 1", gpus, err)
		}
		<-left
	})
}

func TestAPluginWithNothingToOfferLeavesAtOnce(t *testing.T) {
	plugin := New(DefaultConfig("n1"), plugintest.NewSource(gpu.Inventory{UnitMiB: 1024}), plugintest.NewPods(pod("waits", 1, "", app(3))), nil, &plugintest.Notes{}, &plugintest.Counts{}, zap.NewNop())
	plugin.Announcer.Shutdown(t.Context(), func(context.Context) error {
		t.Error("an inventory of nothing is withdrawn")
		return errors.New("not to be called")
	})
}

// TestAPluginThatCannotListItsPodsLeaves verifies that Shutdown then uses the pods that the watch has
// delivered.
func TestAPluginThatCannotListItsPodsLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		p := plugintest.NewPods(pod("waits", 1, uuidA, app(3)))
		p.Away = 1
		plugin := New(DefaultConfig("n1"), plugintest.NewSource(plugintest.TwoGPUs()), p, nil, &plugintest.Notes{}, &plugintest.Counts{}, zap.New(core))
		plugin.Announcer.Shutdown(t.Context(), func(context.Context) error { return nil })
		if logs.FilterMessage("the API server does not tell which pods the kubelet is to admit yet").Len() != 1 {
			t.Errorf("logged %v", logs.All())
		}
		left := logs.FilterMessage("left").All()
		if len(left) != 1 || left[0].ContextMap()["pods not admitted"] != int64(1) || left[0].ContextMap()["pods not started"] != int64(0) {
			t.Errorf("logged %v", left)
		}
	})
}
