# At each build: OUT is made of IN with the commit's description, and written only if it changes.
execute_process(COMMAND git describe --always --dirty WORKING_DIRECTORY ${FOLDER}
    OUTPUT_VARIABLE git_description OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${IN} ${OUT} @ONLY)
