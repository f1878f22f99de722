package claims

import "fmt"

// Prepared returns how many claims the last driver has prepared and not given back.
func Prepared(disk Disk) (int, error) {
	claims, err := readClaims(disk)
	return len(claims), err
}

// Choose says whether a node is served by claims, and why. Its label counts once nothing is left
// that was handed out the other way: the pods that hold the extended resource, or prepared claims.
// Until then both could give the same memory.
func Choose(labelled bool, prepared int, holders []string) (byClaims bool, why string) {
	switch {
	case labelled && len(holders) > 0:
		return false, fmt.Sprintf("the node is to hand out claims once %d pods with the extended resource have ended, %s among them", len(holders), holders[0])
	case !labelled && prepared > 0:
		return true, fmt.Sprintf("the node is to hand out the extended resource once %d prepared claims are given back", prepared)
	case labelled:
		return true, "the node's label says so"
	default:
		return false, "no label of the node says otherwise"
	}
}
