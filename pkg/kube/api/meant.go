package api

import (
	"strings"

	"github.com/gpumem/gpumem/pkg/core/nearmiss"
)

// MeantAnnotation returns the annotation for users that is most similar to a misspelt one, or "".
func (n Names) MeantAnnotation(key string) string {
	var known []string
	for _, a := range annotations {
		if a.writer == byUsers {
			known = append(known, a.name)
		}
	}
	if name := nearmiss.SimilarName(strings.TrimPrefix(key, n.domain+"/"), known); name != "" {
		return n.key(name)
	}
	return ""
}
