package nvml

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

const bound = 10 * time.Second

// TestNoCallerWaitsForAHangingMachine verifies the bound of each call, and that a hanging call is not repeated.
func TestNoCallerWaitsForAHangingMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card := t4("GPU-a")
		m := newMachine(card)
		machine := NewMachine(m.open, bound)
		calls := map[string]func() error{
			"Parts":   func() error { _, _, _, _, err := machine.Parts(0, all); return err },
			"Modes":   func() error { _, err := machine.Modes(); return err },
			"SetMode": func() error { return machine.SetMode("GPU-a", 3) },
		}
		set := 0
		card.device.(*mock.Device).SetComputeModeFunc = func(nvml.ComputeMode) nvml.Return { set++; return nvml.SUCCESS }
		hang := make(chan struct{})
		card.hang = hang
		for range 3 {
			for name, call := range calls {
				begin := time.Now()
				if err := call(); !errors.Is(err, ErrSlow) || time.Since(begin) > bound {
					t.Errorf("%s returned after %s: %v", name, time.Since(begin), err)
				}
			}
		}
		m.change(func() {
			if card.hang = nil; card.asked != len(calls) {
				t.Errorf("%d calls were started, want one of each kind", card.asked)
			}
		})
		close(hang)
		synctest.Wait()
		for name, call := range calls {
			if err := call(); err != nil {
				t.Errorf("%s, when NVML answers again: %v", name, err)
			}
		}
		if set != 2 {
			t.Errorf("the mode was set %d times, want by the late call and by the last one", set)
		}
	})
}

// TestASlowMachineIsRead covers a machine on which every call takes longer than the bound: each answer is used once.
func TestASlowMachineIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t4("GPU-a"))
		machine := NewMachine(func() (nvml.Interface, string) {
			time.Sleep(bound * 3 / 2)
			return m.open()
		}, bound)
		var failed []bool
		for range 6 {
			_, gpus, _, _, err := machine.Parts(0, all)
			failed = append(failed, err != nil || len(gpus) != 1)
			time.Sleep(time.Second)
		}
		if want := []bool{true, false, true, false, true, false}; !slices.Equal(failed, want) {
			t.Errorf("failed: %v, want %v", failed, want)
		}
	})
}

// TestTheLastModeRemains covers a call that hangs and sets its mode late.
func TestTheLastModeRemains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		card := t4("GPU-a")
		m := newMachine(card)
		machine := NewMachine(m.open, bound)
		var modes []nvml.ComputeMode
		hang := make(chan struct{})
		card.device.(*mock.Device).SetComputeModeFunc = func(mode nvml.ComputeMode) nvml.Return {
			if mode == 3 {
				<-hang
			}
			modes = append(modes, mode)
			return nvml.SUCCESS
		}
		for _, mode := range []int{3, 0} {
			if err := machine.SetMode("GPU-a", mode); !errors.Is(err, ErrSlow) {
				t.Errorf("mode %d: %v", mode, err)
			}
		}
		restored := make(chan error, 1)
		go func() { restored <- machine.SetMode("GPU-a", 0) }()
		synctest.Wait()
		close(hang)
		if err := <-restored; err != nil || fmt.Sprint(modes) != "[3 0]" {
			t.Errorf("modes %v, %v", modes, err)
		}
	})
}
