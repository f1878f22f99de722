package table

import (
	"bytes"
	"strings"
	"testing"
)

// A Chinese character has two columns on a terminal, and a combining accent none.
func TestColumnsLineUpWithWideCharacters(t *testing.T) {
	for text, want := range map[string]int{"机房维护": 8, "abc": 3, "e\u0301": 1, "\u200d": 0, "ｗ": 2, "█░": 2, "": 0} {
		if got := Width(text); got != want {
			t.Errorf("%q takes %d columns, want %d", text, got, want)
		}
	}
	columns := []Column[[2]string]{
		{Header: "REASON", Cell: func(r [2]string) string { return r[0] }},
		{Header: "GPU", Cell: func(r [2]string) string { return r[1] }},
	}
	var out bytes.Buffer
	if err := List(&out, columns, [][2]string{{"机房维护", "0"}, {"abcdefgh", "1"}}, ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if want := "REASON    GPU\n机房维护  0\nabcdefgh  1\n"; strings.TrimRight(out.String(), " ") != want {
		t.Errorf("got\n%s", out.String())
	}
}
