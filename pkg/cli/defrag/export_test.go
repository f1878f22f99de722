package defrag

// RoomKept is for the tests outside.
var RoomKept = roomKept
