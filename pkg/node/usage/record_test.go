package usage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// uses records the usage that is written to pods.
type uses struct {
	written []string
	err     error
}

func (u *uses) RecordUse(_ context.Context, ref placement.PodRef, used, peak int64) error {
	u.written = append(u.written, fmt.Sprintf("%s %d/%d", ref, used, peak))
	return u.err
}

// A pod's usage is written at most once in five minutes, and only if it changed by a step.
func TestUseIsRecordedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, watch := newWorld()
		to := &w.uses
		for _, step := range []struct {
			used uint64
			wait time.Duration
			want string
			err  error
		}{
			{used: 100, want: "ns/p 128/128"},
			{used: 500, want: ""},
			{used: 90, wait: recordInterval, want: "ns/p 128/512"},
			{used: 120, wait: recordInterval, want: ""},
			{used: 300, wait: time.Second, want: "ns/p 320/512", err: errors.New("later")},
			{used: 400, wait: recordInterval - time.Second, want: ""},
			{used: 400, wait: time.Second, want: "ns/p 448/512"},
		} {
			time.Sleep(step.wait)
			to.written, to.err = nil, step.err
			watch.compareUsage(t.Context(), on("GPU-a", process(inPod, step.used)))
			if got := strings.Join(to.written, ";"); got != step.want {
				t.Errorf("%d MiB after %v: %q is written, want %q", step.used, step.wait, got, step.want)
			}
		}
	})
}
