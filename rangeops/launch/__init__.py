"""launch: from a declared op and its arguments to a call that costs a few microseconds.

    op              RangeOp: bind and call; the registry
    resolve         arguments -> Binding; every refusal is made there (operands, rows: of ranges)
    binding         what a launch is made of, and where each argument of its kernel lies
    launchers       Binding -> launch(stream), by the kind of device
    launch          BoundLaunch; binding on first use
    graph           launches captured once, replayed with one call
    coefficients    the rule from hyper-parameters to what updates read; the options
    reference       signature and documentation of an op; stubs: its types

What an op is to a caller, and how flags and options differ, says ``RangeOp``.
"""
