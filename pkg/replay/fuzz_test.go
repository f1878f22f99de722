package replay

import (
	"strings"
	"testing"
)

// FuzzReadSimple: whatever the files say, they are refused with words, or what is
// read of them is a trace that can be replayed, with more nodes too.
func FuzzReadSimple(f *testing.F) {
	f.Add("name,gpus,gpu-mem,gpu-model,cpu,memory\nn1,2,16,P100,64000,262144\n", "name,gpu-mem,gpu-core,gpu-count,gpu-model,arrival,duration,cpu,memory\np,4,10,1,P100|T4,1.5,60,1000,1\nq,,,,,,,1,1\n")
	f.Add("\ufeffname,gpus,gpu-mem\n,99999999999,\n", "name,gpu-mem,gpu-count,arrival\np,-1,1,1e309\n")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, nodes, pods string) {
		trace, err := ReadSimple("fuzzed", strings.NewReader(nodes), strings.NewReader(pods))
		if err != nil {
			return
		}
		if trace.Capacity() <= 0 || trace.Demand() <= 0 {
			t.Errorf("%q, %q: %d units asked of %d", nodes, pods, trace.Demand(), trace.Capacity())
		}
		if _, err := trace.AddNodes(trace.Nodes[0].Name, 1); err != nil && !strings.Contains(err.Error(), "-added-1 is listed twice") {
			t.Errorf("%q: one more node: %v", nodes, err)
		}
	})
}
