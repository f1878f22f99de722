// Package shm removes what programs have left in a /dev/shm that containers share, once none is left that
// could have made it.
package shm
