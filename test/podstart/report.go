package podstart

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The goals.
const (
	mostLonger   = 1.05 // times as long as a pod without GPU memory
	mostComeback = 1.0  // second
)

// Report is what was measured.
type Report struct {
	// Seconds from a pod's binding until it ran: with GPU memory, with a resource
	// of a device plugin that decides nothing, and with neither.
	With, Idle, Without []float64

	Comebacks []float64 // seconds from the kubelet's device manager to the device plugin's registration
	Cores     float64   // that the device plugin takes at rest
	MemoryMiB float64   // resident
}

func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod start: median %.3f s with GPU memory, %.3f s with a device plugin that decides nothing, %.3f s without; %d of each\n",
		median(r.With), median(r.Idle), median(r.Without), len(r.With))
	fmt.Fprintf(&b, "device plugin at rest: %.2f %% of a core, %.0f MiB resident\n", r.Cores*100, r.MemoryMiB)
	for _, one := range []struct {
		name        string
		value, goal float64
	}{
		{"pod-start", median(r.With) / median(r.Without), mostLonger},
		{"plugin-comeback-seconds", slices.Max(r.Comebacks), mostComeback},
	} {
		verdict := "met"
		if one.value > one.goal {
			verdict = "missed"
		}
		fmt.Fprintf(&b, "result: %s %.2f goal %.2f %s\n", one.name, one.value, one.goal, verdict)
	}
	return b.String()
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// klogTime is where a line of klog has its time, in microseconds.
var klogTime = regexp.MustCompile(`^[IWEF]\d{4} (\d{2}:\d{2}:\d{2}\.\d{6})`)

// comeback reads from a kubelet's log how long a device plugin took to register
// once the kubelet had come so far as to make its device manager.
func comeback(log []byte, resource string) (took time.Duration, ok bool) {
	var open time.Time
	for line := range bytes.Lines(log) {
		match := klogTime.FindSubmatch(line)
		if match == nil {
			continue
		}
		at, err := time.Parse("15:04:05.000000", string(match[1]))
		if err != nil {
			continue
		}
		switch {
		case bytes.Contains(line, []byte("Creating device plugin manager")):
			open = at
		case bytes.Contains(line, []byte("Got registration request from device plugin")) && bytes.Contains(line, []byte(resource)) && !open.IsZero():
			took = at.Sub(open)
			if took < 0 {
				took += 24 * time.Hour // midnight has passed
			}
			return took, true
		}
	}
	return 0, false
}
