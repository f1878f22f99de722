package deviceplugin

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/gpu"
)

func TestHealthIsAnnouncedOnceOnTheNodeAndToThePodsOfTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prober := newProber(twoGPUs())
		notes := &notes{}
		p := New(DefaultConfig("n1"), prober, newPods(pod("on-it", 1, uuidB, app(3)), pod("beside", 2, uuidA, app(3))), nil, notes, &counts{}, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.AnnounceHealth(ctx) }()
		set := func(s gpu.Status) {
			prober.set(func(inv *gpu.Inventory) { inv.Devices[1].Status = s })
			synctest.Wait()
		}
		synctest.Wait()
		set(gpu.Unhealthy("XID 79"))
		set(gpu.Unhealthy("XID 79"))
		set(gpu.Status{})
		set(gpu.Status{})
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		var got []string
		for _, note := range notes.all() {
			what, _, _ := strings.Cut(note, ":")
			got = append(got, what)
		}
		if diff := cmp.Diff([]string{"node GPUUnhealthy", "ns/on-it GPUUnhealthy", "node GPUHealthy"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
