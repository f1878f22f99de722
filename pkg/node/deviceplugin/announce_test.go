package deviceplugin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/node/plugintest"
)

func TestHealthIsAnnouncedOnceOnTheNodeAndToThePodsOfTheGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := plugintest.NewSource(plugintest.TwoGPUs())
		notes := &plugintest.Notes{}
		p := New(DefaultConfig("n1"), source, plugintest.NewPods(pod("on-it", 1, uuidB, app(3)), pod("beside", 2, uuidA, app(3))), nil, notes, &plugintest.Counts{}, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Announcer.AnnounceHealth(ctx) }()
		set := func(s gpu.Status) {
			source.Set(func(inv *gpu.Inventory) { inv.Devices[1].Status = s })
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
		for _, note := range notes.All() {
			what, _, _ := strings.Cut(note, ":")
			got = append(got, what)
		}
		if diff := cmp.Diff([]string{"node GPUUnhealthy", "ns/on-it GPUUnhealthy", "node GPUHealthy"}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// TestWordsThatChangeAreAnnouncedRarely covers a failing MPS daemon that prints a different message each time.
func TestWordsThatChangeAreAnnouncedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := plugintest.NewSource(plugintest.TwoGPUs())
		notes := &plugintest.Notes{}
		p := New(DefaultConfig("n1"), source, plugintest.NewPods(), nil, notes, &plugintest.Counts{}, zap.NewNop())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Announcer.AnnounceHealth(ctx) }()
		for i := range 100 {
			source.Set(func(inv *gpu.Inventory) { inv.Devices[1].Status = gpu.Unhealthy(fmt.Sprint("it has ended: ", i)) })
			time.Sleep(time.Second)
			synctest.Wait()
		}
		time.Sleep(2 * reasonInterval)
		synctest.Wait()
		cancel()
		<-done
		if got := notes.All(); len(got) != 2 || !strings.Contains(got[0], "it has ended: 0") || !strings.Contains(got[1], "it has ended: 99") {
			t.Errorf("announced %q, want the first words and the last ones", got)
		}
	})
}
