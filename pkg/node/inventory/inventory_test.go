package inventory

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestLatest(t *testing.T) {
	one := gpu.Inventory{UnitMiB: 1024, Devices: []gpu.Device{{UUID: "GPU-a", Allocatable: 14}}}
	l := NewLatest(gpu.Inventory{UnitMiB: 1024}, "not probed yet")
	_, reason, changed := l.Inventory()
	if reason != "not probed yet" || closed(changed) || closed(l.Looked()) {
		t.Errorf("before anything is set: %q, changed %t, looked %t", reason, closed(changed), closed(l.Looked()))
	}

	l.Set(gpu.Inventory{UnitMiB: 1024}, "not probed yet")
	if closed(changed) || !closed(l.Looked()) {
		t.Errorf("the same is set: changed %t, looked %t", closed(changed), closed(l.Looked()))
	}
	l.Set(one, "")
	if !closed(changed) {
		t.Error("another inventory wakes nobody")
	}

	got, reason, changed := l.Inventory()
	if diff := cmp.Diff(one, got); diff != "" || reason != "" || closed(changed) {
		t.Errorf("reason %q, changed %t (-want +got):\n%s", reason, closed(changed), diff)
	}
	got.Devices[0].Status.Unhealthy = true
	if again, _, _ := l.Inventory(); !again.Devices[0].Status.TakesPods() {
		t.Error("a reader has changed what others read")
	}
	l.Set(one, "why")
	if !closed(changed) {
		t.Error("another reason wakes nobody")
	}
}

func TestAStageIsUpdatedAtAnIntervalAndWhenTheSourceChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		source := NewLatest(gpu.Inventory{}, "nothing yet")
		stage := NewStage(source)
		var updates []time.Duration
		start := time.Now()
		ended := make(chan error, 1)
		go func() {
			ended <- stage.Watch(ctx, time.Minute, func(_ context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) {
				updates = append(updates, time.Since(start))
				return inv, reason + "!"
			})
		}()
		time.Sleep(10 * time.Second)
		if closed(stage.Looked()) {
			t.Error("the stage has looked before its source")
		}
		source.Set(gpu.Inventory{}, "nothing yet")
		time.Sleep(70 * time.Second)
		if !closed(stage.Looked()) {
			t.Error("the stage has not looked after its source")
		}
		source.Set(gpu.Inventory{}, "none")
		time.Sleep(time.Minute)
		if _, reason, _ := stage.Inventory(); reason != "none!" {
			t.Errorf("reason %q", reason)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		want := []time.Duration{10 * time.Second, 70 * time.Second, 80 * time.Second, 130 * time.Second}
		if diff := cmp.Diff(want, updates); diff != "" {
			t.Errorf("updates (-want +got):\n%s", diff)
		}
		source.Set(gpu.Inventory{}, "late")
		stage.Update(ctx, func(_ context.Context, inv gpu.Inventory, reason string) (gpu.Inventory, string) { return inv, reason })
		if _, reason, _ := stage.Inventory(); reason != "none!" {
			t.Errorf("an update that was cut short is published: %q", reason)
		}
	})
}

func TestSize(t *testing.T) {
	for name, tc := range map[string]struct {
		total, reserved, unit int64
		units                 gpu.Units
		shareMiB              int64
	}{
		"units":                     {15360, 450, 1024, 14, 0},
		"less than a unit":          {1000, 1, 1024, 0, 0},
		"shares":                    {15360, 450, 0, 10, 1491},
		"of a large GPU":            {81920, 600, 0, 10, 8132},
		"hardly any":                {19, 0, 0, 10, 1},
		"none":                      {9, 0, 0, 0, 1},
		"more reserved than it has": {100, 200, 0, 0, 1},
	} {
		got := Size(tc.total, tc.reserved-1, 1, tc.unit)
		if got.Allocatable != tc.units || got.ShareMiB != tc.shareMiB {
			t.Errorf("%s: %d units, shares of %d MiB, want %d and %d", name, got.Allocatable, got.ShareMiB, tc.units, tc.shareMiB)
		}
	}
}

// TestSizeWithoutReservedMemory verifies that a negative reserve of the driver adds no memory.
func TestSizeWithoutReservedMemory(t *testing.T) {
	for driverMiB, want := range map[int64]gpu.Units{-2048: 3, 0: 3, 1: 2} {
		if got := Size(3072, driverMiB, 0, 1024).Allocatable; got != want {
			t.Errorf("%d MiB are reserved: %d units, want %d", driverMiB, got, want)
		}
	}
}
