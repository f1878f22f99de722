package cordons

import (
	"encoding/json"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/gpumem/gpumem/pkg/core/gpu"
	"github.com/gpumem/gpumem/pkg/kube/api"
)

// Note records the author and the reason of a cordon. Either may be empty.
type Note struct {
	By     string `json:"by,omitempty"`     // user name at the API server
	Reason string `json:"reason,omitempty"` // free text
}

// String renders the note to follow the word "cordoned": "by alice (its fan is loud)".
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

// ParseNotes parses the notes of a node. It returns nil if the annotation is malformed. GPUs that gpumem 0.1
// cordoned have no note.
func ParseNotes(names api.Names, node *v1.Node) map[gpu.UUID]Note {
	var notes map[gpu.UUID]Note
	if json.Unmarshal([]byte(node.Annotations[names.CordonReasons()]), &notes) != nil {
		return nil
	}
	return notes
}

// Format returns the value of the annotation with the notes (api.Keys.CordonReasons).
func Format(notes map[gpu.UUID]Note) (string, error) {
	data, err := json.Marshal(notes)
	if err != nil {
		return "", fmt.Errorf("write who cordoned GPUs: %w", err)
	}
	return string(data), nil
}
