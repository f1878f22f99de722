package cordons

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Note says who has cordoned a GPU, and why. Either may be empty.
type Note struct {
	By     string `json:"by,omitempty"`     // the name of the user to the API server
	Reason string `json:"reason,omitempty"` // in their words
}

// String is what follows on "cordoned": "by alice (its fan is loud)".
func (n Note) String() string {
	s := ""
	if n.By != "" {
		s = "by " + n.By
	}
	if n.Reason != "" {
		s += " (" + n.Reason + ")"
	}
	return strings.TrimSpace(s)
}

// Of reads the notes of a node. It has none of a GPU that gpumem 0.1 cordoned, and none at all where
// the annotation cannot be read.
func Of(names api.Names, node *v1.Node) map[gpu.UUID]Note {
	var notes map[gpu.UUID]Note
	if json.Unmarshal([]byte(node.Annotations[names.CordonReasons()]), &notes) != nil {
		return nil
	}
	return notes
}

// Format returns the value of the annotation.
func Format(notes map[gpu.UUID]Note) (string, error) {
	data, err := json.Marshal(notes)
	if err != nil {
		return "", fmt.Errorf("write who cordoned GPUs: %w", err)
	}
	return string(data), nil
}
