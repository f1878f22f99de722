package printers

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/report/inspect"
)

// Printer writes a report for a reader.
type Printer func(io.Writer, inspect.Report) error

// Marks and words for what has no number.
const (
	unknown = "<unknown>"
	absent  = "-"

	sickMark     = "!" // an unhealthy GPU
	cordonedMark = "~"
	aloneMark    = "=" // a GPU that a pod holds alone
	withheldMark = "^" // a node whose kubelet offers nothing of it
	unitsMark    = "u" // an amount in units
	sharesMark   = "s" // an amount in shares
)

// measure is what the amounts of one table are printed in.
type measure string

const (
	inGiB   measure = "GiB"
	inMiB   measure = "MiB"
	inUnits measure = "units"

	inShares measure = "shares"
)

// measureOf returns the measure that prints the amounts of all nodes exactly.
func measureOf(nodes []inspect.Node) measure {
	m := inGiB
	for _, n := range nodes {
		if n.UnitMiB%1024 != 0 {
			m = inMiB
		}
	}
	return m
}

// amount prints what is known of an amount. Where MiB are not known, a mark says
// that these are units.
func (m measure) amount(a *inspect.Memory) string {
	switch {
	case a == nil:
		return "?"
	case m == inUnits, m == inShares:
		return fmt.Sprint(a.Units)
	case a.InShares:
		return fmt.Sprint(a.Units) + sharesMark
	case unsized(*a):
		return fmt.Sprint(a.Units) + unitsMark
	default:
		return m.mib(&a.MiB)
	}
}

func (m measure) mib(mib *int64) string {
	switch {
	case mib == nil:
		return "?"
	case m == inGiB:
		return fmt.Sprint(*mib / 1024)
	default:
		return fmt.Sprint(*mib)
	}
}

func (m measure) ratio(requested *inspect.Memory, capacity inspect.Memory) string {
	if capacity.InShares { // which says of how many they are
		m = inShares
	}
	return m.amount(requested) + "/" + m.amount(&capacity)
}

// used prints what was measured. GiB have one decimal: no program uses whole ones.
func (m measure) used(u *Usage) string {
	switch {
	case u == nil:
		return "?"
	case m == inGiB:
		return fmt.Sprintf("%.1f", float64(u.UsedMiB)/1024)
	default:
		return fmt.Sprint(u.UsedMiB)
	}
}

// Age is how long ago something was.
func Age(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t))
}

// unsized reports whether an amount is known in units alone.
func unsized(a inspect.Memory) bool { return a.MiB == 0 && a.Units != 0 && !a.InShares }

// unitsNote is the legend of amounts that are known in units alone.
const unitsNote = unitsMark + " counts units whose size is not known, or differs between nodes."

// sharesNote is the legend of amounts in shares.
const sharesNote = sharesMark + " counts shares of GPUs, ten to each."

// percent rounds down: 100% is full.
func percent(part *int64, whole int64) string {
	switch {
	case whole <= 0:
		return absent
	case part == nil:
		return "?"
	default:
		return fmt.Sprintf("%d%%", int64(float64(*part)/float64(whole)*100))
	}
}

func percentOf(requested *inspect.Memory, capacity inspect.Memory) string {
	if requested == nil {
		return percent(nil, int64(capacity.Units))
	}
	part := int64(requested.Units)
	return percent(&part, int64(capacity.Units))
}

// ofCluster is the line of the sum.
func ofCluster(r inspect.Report) string {
	where := "In Cluster"
	if r.Selected {
		where = "Of These Nodes"
	}
	m := measureOf(r.Nodes)
	return fmt.Sprintf("Allocated/Total GPU Memory %s: %s/%s %s (%s)\n", where,
		m.mib(r.Total.RequestedMiB), m.mib(&r.Total.CapacityMiB), m, percent(r.Total.RequestedMiB, r.Total.CapacityMiB))
}

func models(gpus []inspect.GPU) string {
	var out []string
	seen := make(map[string]bool)
	for _, g := range gpus {
		if g.Model != "" && !seen[g.Model] {
			seen[g.Model] = true
			out = append(out, g.Model)
		}
	}
	return strings.Join(out, ",")
}

func cores(percent int) string { return fmt.Sprint(percent) }

func uuids(ids []gpu.UUID) string {
	out := make([]string, 0, len(ids))
	for _, id := range ids {
		out = append(out, string(id))
	}
	return strings.Join(out, ",")
}

// listed returns how many different pods of the node the report lists.
func listed(n inspect.Node) int {
	type key struct{ namespace, name, uid string }
	pods := make(map[key]bool)
	for _, g := range n.GPUs {
		for _, p := range g.Pods {
			pods[key{p.Namespace, p.Name, p.UID}] = true
		}
	}
	return len(pods) + len(n.Unattributed)
}

// indexes returns the GPU indexes that occur on any node, in order.
func indexes(r inspect.Report) []int {
	set := make(map[int]bool)
	for _, n := range r.Nodes {
		for _, g := range n.GPUs {
			set[g.Index] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}
