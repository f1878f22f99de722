package chaos

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestASuspectBecomesAViolationWithTime(t *testing.T) {
	w := &watcher{log: io.Discard, journal: &journal{}, known: make(map[string]bool), suspects: make(map[string]time.Duration)}
	repaired := finding{invariant: i5, text: "may be repaired", lenient: true}
	certain := finding{invariant: i2, text: "certain"}
	for _, step := range []struct {
		name     string
		findings []finding
		elapsed  time.Duration
		want     int // violations
	}{
		{"first seen, its age is not known", []finding{repaired}, time.Hour, 0},
		{"seen again while a part is down", []finding{repaired}, 0, 0},
		{"seen for as long as it may be", []finding{repaired}, repairTime, 0},
		{"gone", nil, repairTime, 0},
		{"back, and young again", []finding{repaired}, repairTime, 0},
		{"seen for too long", []finding{repaired}, repairTime + 1, 1},
		{"counted once", []finding{repaired}, repairTime, 1},
		{"certain at once", []finding{certain}, 0, 2},
	} {
		if w.suspect(step.findings, step.elapsed); w.count() != step.want {
			t.Errorf("%s: %d violations, want %d", step.name, w.count(), step.want)
		}
	}
	if w.count(i2) != 1 || w.count(i1, i4) != 0 {
		t.Errorf("%d of I2 and %d of I1 and I4, want 1 and 0", w.count(i2), w.count(i1, i4))
	}
}

func TestJournalAround(t *testing.T) {
	now := time.Now()
	j := &journal{entries: []entry{
		{now.Add(-timeBefore - time.Second), "ns/a", "long before"},
		{now.Add(-time.Second), "ns/a", "bound"},
		{now.Add(-time.Second), "ns/b", "of another"},
		{now, "", "kill -9 etcd"},
		{now.Add(time.Second), "ns/a", "gone"},
		{now.Add(timeAfter + time.Second), "ns/a", "long after"},
	}}
	want := []string{"-1.0 s  ns/a bound", "+0.0 s  kill -9 etcd", "+1.0 s  ns/a gone"}
	var got []string
	for line := range strings.Lines(j.around(now, []string{"ns/a"})) {
		got = append(got, strings.TrimSpace(line))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("around (-want +got):\n%s", diff)
	}
}

func TestGeneralLeavesOutWhatIsOnePodsOwn(t *testing.T) {
	got := general("pod chaos/pod-13 (9d600dce-2fdd-4cf5-a986-45f20afede23) wants 3 GiB of GPU [GPU-bff86e87-4d24-0ce3-d75c-0f9687e55afa], slots bff86e87-1, bff86e87-2")
	if want := "pod chaos/pod-# (#) wants # GiB of GPU [#], slots #"; got != want {
		t.Errorf("general = %q, want %q", got, want)
	}
}
