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

// Printer prints a report.
type Printer func(io.Writer, inspect.Report) error

// Marks, and words for missing values.
const (
	unknown = "<unknown>"
	absent  = "-"

	sickMark     = "!" // an unhealthy GPU
	cordonedMark = "~"
	aloneMark    = "=" // a GPU with an exclusive pod
	withheldMark = "^" // a node whose kubelet offers no GPU memory
	unitsMark    = "u" // an amount in units
	sharesMark   = "s" // an amount in shares
)

// measure is the unit of the amounts in a table.
type measure string

const (
	inGiB   measure = "GiB"
	inMiB   measure = "MiB"
	inUnits measure = "units"

	inShares measure = "shares"
)

// measureOf returns the measure that prints the amounts of all nodes without rounding.
func measureOf(nodes []inspect.Node) measure {
	m := inGiB
	for _, n := range nodes {
		if n.UnitMiB%1024 != 0 {
			m = inMiB
		}
	}
	return m
}

// amount renders an amount. It adds a mark to shares, and to units of unknown size.
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
	if capacity.InShares { // the cell shows the number of shares
		m = inShares
	}
	return m.amount(requested) + "/" + m.amount(&capacity)
}

// used renders measured memory. In GiB it has one decimal, because programs rarely use whole GiB.
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

// Age returns the time since t in short form.
func Age(t time.Time) string {
	if t.IsZero() {
		return unknown
	}
	return duration.HumanDuration(time.Since(t))
}

// unsized reports whether an amount is known only in units.
func unsized(a inspect.Memory) bool { return a.MiB == 0 && a.Units != 0 && !a.InShares }

// unitsNote is the legend of amounts that are known only in units.
const unitsNote = unitsMark + " counts units of unknown size, or of different sizes on different nodes."

// sharesNote is the legend of amounts in shares.
const sharesNote = sharesMark + " counts shares of GPUs, ten to each."

// percent rounds down, so 100% means full.
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

// ofCluster returns the line with the sum over all nodes.
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

// listed returns the number of different pods on a node in the report.
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

// indexes returns the sorted indexes of all GPUs in the report.
func indexes(r inspect.Report) []int {
	set := make(map[int]bool)
	for _, n := range r.Nodes {
		for _, g := range n.GPUs {
			set[g.Index] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}
