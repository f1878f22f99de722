package usage

import (
	"context"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/gpumem/gpumem/pkg/core/placement"
)

// Recorder writes the use of a pod to the pod, for owners who may not ask the device plugin.
type Recorder interface {
	RecordUse(ctx context.Context, ref placement.PodRef, usedMiB, peakMiB int64) error
}

const (
	// recordInterval is the least time between two writes for one pod.
	recordInterval = 5 * time.Minute
	// recordStepMiB is the step to which the use is rounded up, so that small changes cause no write.
	recordStepMiB = 64
)

// recorded is the last write for a pod.
type recorded struct {
	used, peak int64 // MiB
	at         time.Time
}

// Record has the use of each pod written to the pod. It is called before Run.
func (w *Watch) Record(to Recorder) { w.recorder = to }

// record writes the use of pods whose last write is old enough and differs. A write that fails counts, too:
// the API server has to get no more of them because it is slow.
func (w *Watch) record(ctx context.Context, samples []Sample) {
	if w.recorder == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	maps.DeleteFunc(w.records, func(ref placement.PodRef, _ recorded) bool { return !w.pods.Holds(ref.UID) })
	sums := make(map[placement.PodRef]recorded)
	for _, s := range samples {
		sum := sums[s.Pod]
		sum.used, sum.peak, sum.at = sum.used+int64(s.Used/mib), sum.peak+int64(s.Peak/mib), time.Now()
		sums[s.Pod] = sum
	}
	for ref, now := range sums {
		now.used, now.peak = roundUp(now.used), roundUp(now.peak)
		was, known := w.records[ref]
		if known && (now.at.Sub(was.at) < recordInterval || now.used == was.used && now.peak == was.peak) {
			continue
		}
		w.records[ref] = now
		if err := w.recorder.RecordUse(ctx, ref, now.used, now.peak); err != nil {
			w.log.Debug("the use of a pod is not recorded", zap.Stringer("pod", ref), zap.Error(err))
		}
	}
}

func roundUp(mib int64) int64 { return (mib + recordStepMiB - 1) / recordStepMiB * recordStepMiB }
