package doctor

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAlike(t *testing.T) {
	down := func(node string) Finding {
		return Finding{"nodes", Error, "node " + node, "is NotReady: gone", "kubectl describe node " + node + " says more; " + node + "."}
	}
	lost := func(node string) Finding {
		return Finding{"nodes", Error, "node " + node, "GPU 0 is unhealthy", "see " + node}
	}
	warned := down("b")
	warned.Severity = Warning
	unread := Finding{"nodes", Warning, "secrets", "cannot be read", "ask"}
	tests := map[string]struct{ found, want []Finding }{
		"none":                      {nil, nil},
		"one is as it was":          {[]Finding{down("a")}, []Finding{down("a")}},
		"another severity":          {[]Finding{down("a"), warned}, []Finding{down("a"), warned}},
		"another fault of one node": {[]Finding{down("a"), lost("a")}, []Finding{down("a"), lost("a")}},
		"two, where the first is": {
			[]Finding{down("a"), lost("a"), down("b")},
			[]Finding{{"nodes", Error, "2 × node a, b", "is NotReady: gone", "kubectl describe node NODE says more; NODE."}, lost("a")},
		},
		"many": {
			[]Finding{down("a"), down("b"), down("c"), down("d"), down("e")},
			[]Finding{{"nodes", Error, "5 × node a, b, c and 2 more", "is NotReady: gone", "kubectl describe node NODE says more; NODE."}},
		},
		"a part of a word is no name": {
			[]Finding{{"nodes", Error, "node a", "down", "ask about a-1"}, {"nodes", Error, "node b", "down", "ask about b-1"}},
			[]Finding{{"nodes", Error, "node a", "down", "ask about a-1"}, {"nodes", Error, "node b", "down", "ask about b-1"}},
		},
		"what has no name is one for itself": {[]Finding{unread, unread}, []Finding{unread, unread}},
		"other fixes":                        {[]Finding{{"nodes", Error, "node a", "x", "do"}, {"nodes", Error, "node b", "x", "don't"}}, []Finding{{"nodes", Error, "node a", "x", "do"}, {"nodes", Error, "node b", "x", "don't"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Alike(tc.found)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
