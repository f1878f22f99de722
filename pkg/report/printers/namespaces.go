package printers

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// NamespaceRow is the GPU memory of the pods in one namespace: allocated, used, and requested by waiting pods.
type NamespaceRow struct {
	Namespace     string          `json:"namespace"`
	Pods          int             `json:"pods"` // number of pods that have GPU memory
	Granted       inspect.Memory  `json:"granted"`
	Share         *float64        `json:"share,omitempty"`        // of the GPU memory of all nodes, 0 to 1; nil if unknown
	Usage         *Usage          `json:"usage,omitempty"`        // of the measured pods; nil if there are none
	Measured      int             `json:"measuredPods"`           // number of pods with a known usage
	Waiting       int             `json:"waitingPods"`            // number of pods without a node
	WaitingMemory inspect.Memory  `json:"waitsFor,omitzero"`      // requests of the waiting pods
	Oldest        time.Time       `json:"oldestWaiting,omitzero"` // creation time of the oldest waiting pod
	Quotas        []inspect.Quota `json:"quotas,omitempty"`
}

// NamespaceRows sums up a list of pods by namespace, the largest allocation first.
func NamespaceRows(pods []PodRow, total inspect.Total) (rows []NamespaceRow) {
	for _, same := range inspect.Alike(pods, func(p PodRow) string { return p.Namespace }) {
		row := NamespaceRow{Namespace: same[0].Namespace}
		for _, p := range same {
			row.count(p)
		}
		if total.CapacityMiB > 0 {
			row.Share = new(float64(row.Granted.MiB) / float64(total.CapacityMiB))
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b NamespaceRow) int {
		return cmp.Or(cmp.Compare(b.Granted.MiB, a.Granted.MiB), cmp.Compare(b.Granted.Units, a.Granted.Units), cmp.Compare(a.Namespace, b.Namespace))
	})
	return rows
}

func (r *NamespaceRow) count(p PodRow) {
	if p.IsWaiting() {
		r.Waiting++
		add(&r.WaitingMemory, &p.RequestedMemory)
		if !p.Created.IsZero() && (r.Oldest.IsZero() || p.Created.Before(r.Oldest)) {
			r.Oldest = p.Created
		}
		return
	}
	r.Pods++
	add(&r.Granted, &p.Granted)
	if p.Usage != nil {
		if r.Usage == nil {
			r.Usage = &Usage{}
		}
		r.Usage.UsedMiB += p.Usage.UsedMiB
		r.Measured++
	}
}

// NamespaceColumns returns the columns of a list of namespaces. Parameter limited adds the column of quotas.
func NamespaceColumns(r inspect.Report, limited bool) []table.Column[NamespaceRow] {
	m := measureOf(r.Nodes)
	return []table.Column[NamespaceRow]{
		{Header: "NAMESPACE", Cell: func(n NamespaceRow) string { return n.Namespace }},
		{Header: "PODS", Cell: func(n NamespaceRow) string { return strconv.Itoa(n.Pods) }},
		{Header: fmt.Sprintf("ALLOCATED(%s)", m), Cell: func(n NamespaceRow) string { return m.amount(&n.Granted) },
			Notes: amountNotes(func(n NamespaceRow) []inspect.Memory { return []inspect.Memory{n.Granted} })},
		{Header: "SHARE", Cell: func(n NamespaceRow) string {
			if n.Share == nil {
				return "?"
			}
			return fmt.Sprintf("%.1f%%", 100**n.Share)
		}},
		{Header: fmt.Sprintf("QUOTA(%s)", m), Hidden: !limited, Cell: func(n NamespaceRow) string { return m.quotas(n.Quotas) }, Notes: amountNotes(hardAmounts)},
		{Header: fmt.Sprintf("USED(%s)", m), Cell: func(n NamespaceRow) string {
			if n.Pods == 0 {
				return ""
			}
			cell := m.used(n.Usage)
			if n.Usage != nil && n.Measured < n.Pods {
				cell += "+"
			}
			return cell
		}, Notes: []table.Note[NamespaceRow]{
			{Text: notMeasuredNote, About: func(n NamespaceRow) bool { return n.Pods > 0 && n.Usage == nil }},
			{Text: "+ marks a sum without the pods of unknown usage.", About: func(n NamespaceRow) bool { return n.Usage != nil && n.Measured < n.Pods }},
		}},
		{Header: "WAITING", Cell: func(n NamespaceRow) string { return strconv.Itoa(n.Waiting) }},
		{Header: fmt.Sprintf("WAITS-FOR(%s)", m), Cell: func(n NamespaceRow) string {
			if n.Waiting == 0 {
				return ""
			}
			return m.amount(&n.WaitingMemory)
		}, Notes: amountNotes(func(n NamespaceRow) []inspect.Memory { return []inspect.Memory{n.WaitingMemory} })},
		{Header: "OLDEST", Ages: true, Cell: func(n NamespaceRow) string {
			if n.Waiting == 0 {
				return ""
			}
			return Age(n.Oldest)
		}},
	}
}

// quotas renders each quota as USED/HARD.
func (m measure) quotas(all []inspect.Quota) string {
	var cells []string
	for _, q := range all {
		cells = append(cells, m.amount(&q.Used)+"/"+m.amount(&q.Hard))
	}
	return strings.Join(cells, ", ")
}

// amountNotes returns the legend of a column. Parameter amounts returns the amounts in a row's cell.
func amountNotes(amounts func(NamespaceRow) []inspect.Memory) []table.Note[NamespaceRow] {
	about := func(is func(inspect.Memory) bool) func(NamespaceRow) bool {
		return func(n NamespaceRow) bool { return slices.ContainsFunc(amounts(n), is) }
	}
	return []table.Note[NamespaceRow]{
		{Text: unitsNote, About: about(unsized)},
		{Text: sharesNote, About: about(func(a inspect.Memory) bool { return a.InShares })},
	}
}

// hardAmounts returns the hard limits of a namespace's quotas.
func hardAmounts(n NamespaceRow) (amounts []inspect.Memory) {
	for _, q := range n.Quotas {
		amounts = append(amounts, q.Hard)
	}
	return amounts
}
