package api

import (
	"encoding/json"
	"os"
	"testing"
)

// test/policies evaluates the chart's policy with the same cases.
func TestMeantAnnotation(t *testing.T) {
	text, err := os.ReadFile("testdata/meant.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases map[string]string
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	for misspelt, meant := range cases {
		if meant != "" {
			meant = "gpumem.dev/" + meant
		}
		if got := names(t).MeantAnnotation("gpumem.dev/" + misspelt); got != meant {
			t.Errorf("%s: %q, want %q", misspelt, got, meant)
		}
	}
}
