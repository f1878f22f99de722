package replay

import (
	"strings"
	"testing"
)

// FuzzReadOpenB: whatever the files say, they are refused with words, or what is
// read of them is a trace that can be replayed.
func FuzzReadOpenB(f *testing.F) {
	f.Add("sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,2,P100\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\np,1000,1,1,460,P100|T4\nq,1,1,0,0,\n")
	f.Add("\ufeffsn,cpu_milli,memory_mib,gpu,model\n,,,99999999999,\n", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,-1,1,1,1e3\n")
	f.Add("", "x")
	f.Fuzz(func(t *testing.T, nodes, pods string) {
		trace, err := ReadOpenB("fuzzed", strings.NewReader(nodes), strings.NewReader(pods))
		if err != nil {
			return
		}
		if trace.Capacity() <= 0 || trace.Demand() <= 0 {
			t.Errorf("%q, %q: %d units asked of %d", nodes, pods, trace.Demand(), trace.Capacity())
		}
		_, _ = trace.InGiB("fuzzed", GiB{"P100": 16, "": 8})
	})
}
