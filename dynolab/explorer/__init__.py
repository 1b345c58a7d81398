"""The explorer: who pushed which answer of a study, whom a pair pushes, and what if it had not.

`lines` is the arithmetic, `study` what a study has left, `step` what is computed when asked for,
`page` what a browser shows.
"""
