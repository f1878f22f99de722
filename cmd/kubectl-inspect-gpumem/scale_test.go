package main

import (
	"bytes"
	"fmt"
	"net/http/httptest"
	"os"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/gpumem/gpumem/pkg/kube/kubetest"
)

// BenchmarkLargeCluster runs the whole command with 5,000 nodes and 50,000 pods. The time includes the test
// server's encoding of JSON.
func BenchmarkLargeCluster(b *testing.B) {
	s := &server{}
	for i := range 5000 {
		name := fmt.Sprintf("gpu-%04d", i)
		s.nodes = append(s.nodes, kubetest.Node(b, name, kubetest.Inventory(name, 80, 80, 80, 80, 80, 80, 80, 80)))
		for j := range 10 {
			s.pods = append(s.pods, kubetest.Pod(b, fmt.Sprintf("ml/p-%d-%d", i, j), name, 10, kubetest.UUID(name, j%8)))
		}
	}
	for i := range 500 {
		s.pods = append(s.pods, kubetest.Pod(b, fmt.Sprintf("ml/w-%d", i), "", int64(81+i%10)))
	}
	web := httptest.NewServer(s)
	defer web.Close()
	for b.Loop() {
		var out, errOut bytes.Buffer
		err := run(b.Context(), []string{"--kubeconfig", os.DevNull, "--server", web.URL}, genericiooptions.IOStreams{Out: &out, ErrOut: &errOut})
		if err != nil {
			b.Fatal(err, errOut.String())
		}
	}
}
