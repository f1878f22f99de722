package policies

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	envoy "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istio "istio.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// The manifests of docs/routers.md that are marked so are what Envoy and Istio read.
func TestManifestsForRouters(t *testing.T) {
	page, err := os.ReadFile("../../docs/routers.md")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]int)
	for _, block := range regexp.MustCompile("(?s)```yaml\n# (envoy|istio): [^\n]*\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for document := range strings.SplitSeq(block[2], "\n---\n") {
			found[block[1]]++
			if block[1] == "envoy" {
				readStrictly(t, document, func(map[string]json.RawMessage) (proto.Message, string) { return &envoy.Cluster{}, "" })
				continue
			}
			readStrictly(t, document, func(object map[string]json.RawMessage) (proto.Message, string) {
				if string(object["kind"]) == `"DestinationRule"` {
					return &istio.DestinationRule{}, "spec"
				}
				return &istio.VirtualService{}, "spec"
			})
		}
	}
	if found["envoy"] != 1 || found["istio"] != 2 {
		t.Errorf("the page has %v, want one manifest of Envoy and two of Istio", found)
	}
}

// readStrictly reads a document, or the field of it that pick names, as a message that it picks.
func readStrictly(t *testing.T, document string, pick func(map[string]json.RawMessage) (proto.Message, string)) {
	t.Helper()
	text, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	message, field := pick(object)
	if field != "" {
		text = object[field]
	}
	if err := protojson.Unmarshal(text, message); err != nil {
		t.Errorf("%s: %v", document, err)
	}
	if checked, ok := message.(interface{ ValidateAll() error }); ok {
		if err := checked.ValidateAll(); err != nil {
			t.Errorf("%s: %v", document, err)
		}
	}
}
