package printers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/core/placement"
	"github.com/gpumem/gpumem/pkg/report/inspect"
	"github.com/gpumem/gpumem/pkg/report/table"
)

// odd returns a small number, or a number that makes sums overflow.
func odd(random *rand.Rand) int64 {
	return []int64{0, 1, 3, 16, 80, -1, 1 << 40, math.MaxInt64}[random.IntN(8)]
}

// FuzzReport prints reports with arbitrary numbers and names. Every format must print, tables must have
// no control characters, JSON must be valid, and a view of one namespace must have the sums of the whole
// report.
func FuzzReport(f *testing.F) {
	for seed := range uint64(60) {
		f.Add(seed, "NVIDIA A100", "team-a", "waits for a node")
	}
	f.Add(uint64(1), "\x1b[31m", "\n", "\u202e")
	f.Fuzz(func(t *testing.T, seed uint64, model, name, text string) {
		random := rand.New(rand.NewPCG(seed, 17))
		var nodes []node
		facts := inspect.Facts{Nodes: make(map[string]inspect.NodeFacts)}
		for n := range 1 + random.IntN(4) {
			inv := gpu.Inventory{UnitMiB: odd(random), DriverVersion: text}
			for i := range random.IntN(4) {
				inv.Devices = append(inv.Devices, gpu.Device{
					UUID: gpu.UUID(fmt.Sprint(model, i)), Index: i * int(1+odd(random)&7), Model: model, MemoryMiB: odd(random),
					Allocatable: gpu.Units(odd(random)), NUMANode: random.IntN(3) - 1, Status: gpu.Status{Unhealthy: random.IntN(2) == 0, Cordoned: random.IntN(2) == 0, Stopped: random.IntN(2) == 0, Reason: text},
				})
			}
			var pods []placement.Holding
			for i := range random.IntN(5) {
				h := holding(fmt.Sprintf("%s%d/%s%d", name, random.IntN(2), name, i), request(gpu.Units(odd(random)>>16), random.IntN(200)))
				for _, d := range inv.Devices {
					if random.IntN(3) == 0 {
						h.Assignment.Shares = append(h.Assignment.Shares, placement.Share{Device: d.UUID, Units: gpu.Units(odd(random) >> 16)})
					}
				}
				pods = append(pods, h)
			}
			node := node{fmt.Sprint(name, n), inv, pods}
			facts.Nodes[node.name] = inspect.NodeFacts{Problem: []string{"", text}[random.IntN(2)]}
			nodes = append(nodes, node)
		}
		facts.Waiting = append(facts.Waiting, inspect.WaitFacts{Pod: ref("waiting"), Request: request(gpu.Units(odd(random)>>16), 0), Problem: []string{"", text}[random.IntN(2)]})
		r := report(facts, nodes...)
		mine := r.InNamespace(name + "0")
		if mine.Total.CapacityMiB != r.Total.CapacityMiB || fmt.Sprint(deref(mine.Total.RequestedMiB)) != fmt.Sprint(deref(r.Total.RequestedMiB)) {
			t.Errorf("sums of the namespace %+v, of all %+v", mine.Total, r.Total)
		}
		for _, r := range []inspect.Report{r, mine} {
			if text, err := json.Marshal(r); err != nil || !json.Valid(text) {
				t.Errorf("broken JSON: %v, %s", err, text)
			}
			for i, print := range []Printer{
				Table(table.ListOptions{}), Table(table.ListOptions{Wide: true}), Table(table.ListOptions{NoHeaders: true}),
				Details(table.ListOptions{}), Details(table.ListOptions{Wide: true}), Trouble(table.ListOptions{}),
			} {
				var out bytes.Buffer
				if err := print(&out, r); err != nil {
					t.Fatal(err)
				}
				if at := strings.IndexFunc(out.String(), func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); at >= 0 {
					t.Errorf("format %d has a control character: %q", i, out.String()[at:])
				}
			}
		}
	})
}

func deref(mib *int64) any {
	if mib == nil {
		return nil
	}
	return *mib
}
